"""Lowers nodes on strings and lists to calls of C functions.

    %y = list_at(%s, %i) : f32[a,4]   ->   call list_shape(s, i) -> a, 4 ; allocate y
                                           call list_at(s, i) -> y

The heads of runtime/src/ops/lists.c and strings.c describe the functions.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.index import Index
from tcc.ir.lists import dtype_word, type_words
from tcc.ir.op import Array
from tcc.ops.data.lists import ListAtAttrs, ListConcatAttrs
from tcc.ops.data.regex import compile_pattern
from tcc.ops.data.strings import case_table, encoded
from tcc.ops.data.tfidf import MODES, TfIdfAttrs
from tcc.passes.program.lower_calls import Lower, plain, sized


def _item(attrs: Any) -> tuple[int]:
    return (dtype_word(attrs.item),)


def _shape(attrs: ListAtAttrs | ListConcatAttrs) -> tuple[Index, ...]:
    """Returns the shape of the tensor that an op reads from a list."""
    return attrs.type.shape


def _entry_words(attrs: ListAtAttrs) -> tuple[int, ...]:
    """Returns the type of a list's entry as the runtime reads it: dtype, rank, sizes (-1: any)."""
    dims = (-1 if dim.terms else dim.const for dim in attrs.type.shape)
    return (dtype_word(attrs.type.dtype), attrs.type.rank, *dims)


def _automaton(attrs: Any) -> tuple[Array, ...]:
    automaton = compile_pattern(attrs.pattern)
    return automaton.classes, automaton.moves, automaton.accepts


def _tf_idf_tables(attrs: TfIdfAttrs) -> tuple[Array, ...]:
    return (
        np.array(attrs.counts, np.int64),
        np.array(attrs.places, np.int64),
        np.array(attrs.weights, np.float32),
    )


HANDLE_CALLS: Mapping[str, Lower] = MappingProxyType(
    {
        "list_make": plain(_item),
        "list_insert": plain(_item),
        "list_expect": plain(lambda a: type_words(a.type)),
        "list_at": sized("list_shape", _entry_words, _shape),
        "list_concat": sized(
            "list_concat_shape", lambda a: (a.axis, a.new_axis, dtype_word(a.type.dtype)), _shape
        ),
        "list_split": plain(lambda a: (a.axis, a.keep, dtype_word(a.item))),
        "string_split": sized("string_split_count", lambda a: (a.most, *encoded(a.delimiter))),
        "string_case": plain(tables=lambda a: (case_table(a.upper),)),
        "string_remove": sized("string_remove_count"),
        "string_match": plain(tables=_automaton),
        "tf_idf": plain(
            lambda a: (MODES.index(a.mode), a.least, a.most, a.skips), _tf_idf_tables
        ),
        **dict.fromkeys(
            "list_erase list_length string_concat string_rank string_format string_parse "
            "string_decode".split(),
            plain(),
        ),
    }
)  # fmt: skip
