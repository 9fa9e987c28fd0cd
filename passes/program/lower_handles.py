"""Nodes on strings and lists become calls; see the heads of runtime/src/ops/lists.c and strings.c.

%y = list_at(%s, %i) : f32[a,4]        call list_shape(s, i) -> a, 4 ; allocate y ; call
                                       list_at(s, i) -> y
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from tcc.ir.graph import Node
from tcc.ir.index import const
from tcc.ir.lists import ListType, dtype_word, type_words
from tcc.ir.op import Array
from tcc.ir.program import TensorRef
from tcc.ir.types import TensorType, dtype_of
from tcc.ops.data.lists import (
    ListAtAttrs,
    ListConcatAttrs,
    ListExpectAttrs,
    ListItemAttrs,
    ListMakeAttrs,
    ListSplitAttrs,
)
from tcc.ops.data.regex import compile_pattern
from tcc.ops.data.strings import (
    StringCaseAttrs,
    StringMatchAttrs,
    StringSplitAttrs,
    case_table,
    encoded,
)
from tcc.ops.data.tfidf import MODES, TfIdfAttrs
from tcc.passes.program.lower_calls import Lower, bind, call, define
from tcc.passes.program.lower_graph import GraphLowering


def _plain(frame: GraphLowering, node: Node, ints: tuple[int, ...] = ()) -> None:
    """One call with the node's operands and results."""
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    outputs = tuple(define(frame, v) for v in node.outputs)
    call(frame, node.op.name, inputs, outputs, ints)


def _literal(frame: GraphLowering, array: Array) -> TensorRef:
    """A table as an operand."""
    dims = tuple(frame.size(const(n)) for n in array.shape)
    return TensorRef(frame.literal(array), dtype_of(array), dims)


# ---- lists ---------------------------------------------------------------------------------------


def _make(frame: GraphLowering, node: Node) -> None:
    attrs: ListMakeAttrs = node.attrs
    _plain(frame, node, (dtype_word(attrs.item),))


def _insert(frame: GraphLowering, node: Node) -> None:
    attrs: ListItemAttrs = node.attrs
    _plain(frame, node, (dtype_word(attrs.item),))


def _expect(frame: GraphLowering, node: Node) -> None:
    attrs: ListExpectAttrs = node.attrs
    assert isinstance(attrs.type, ListType)
    _plain(frame, node, type_words(attrs.type))


def _entry_words(type: TensorType) -> tuple[int, ...]:
    """The type of a tensor that comes out of a list, as the runtime reads it."""
    dims = (-1 if dim.terms else dim.const for dim in type.shape)
    return (dtype_word(type.dtype), type.rank, *dims)


def _sized(
    frame: GraphLowering, node: Node, shape: str, type: TensorType, ints: tuple[int, ...]
) -> None:
    """Calls the function that tells the sizes of the result, binds them, and calls the op's."""
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    registers = tuple(frame.registers.fresh() for _ in type.shape)
    call(frame, shape, inputs, (), ints, registers)
    for dim, register in zip(type.shape, registers, strict=True):
        bind(frame, dim, register, node.loc)
    call(frame, node.op.name, inputs, (define(frame, node.outputs[0]),), ints)


def _at(frame: GraphLowering, node: Node) -> None:
    attrs: ListAtAttrs = node.attrs
    _sized(frame, node, "list_shape", attrs.type, _entry_words(attrs.type))


def _concat(frame: GraphLowering, node: Node) -> None:
    attrs: ListConcatAttrs = node.attrs
    ints = (attrs.axis, int(attrs.new_axis), dtype_word(attrs.type.dtype))
    _sized(frame, node, "list_concat_shape", attrs.type, ints)


def _split(frame: GraphLowering, node: Node) -> None:
    attrs: ListSplitAttrs = node.attrs
    _plain(frame, node, (attrs.axis, int(attrs.keep), dtype_word(attrs.item)))


# ---- strings -------------------------------------------------------------------------------------


def _counted(frame: GraphLowering, node: Node, ints: tuple[int, ...]) -> None:
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    count = frame.registers.fresh()
    call(frame, f"{node.op.name}_count", inputs, (), ints, (count,))
    bind(frame, node.attrs.size, count, node.loc)
    call(frame, node.op.name, inputs, tuple(define(frame, v) for v in node.outputs), ints)


def _string_split(frame: GraphLowering, node: Node) -> None:
    attrs: StringSplitAttrs = node.attrs
    _counted(frame, node, (attrs.most, *encoded(attrs.delimiter)))


def _string_remove(frame: GraphLowering, node: Node) -> None:
    _counted(frame, node, ())


def _with_tables(
    frame: GraphLowering, node: Node, *tables: Array, ints: tuple[int, ...] = ()
) -> None:
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    known = tuple(_literal(frame, table) for table in tables)
    call(frame, node.op.name, (*inputs, *known), (define(frame, node.outputs[0]),), ints)


def _string_case(frame: GraphLowering, node: Node) -> None:
    attrs: StringCaseAttrs = node.attrs
    _with_tables(frame, node, case_table(attrs.upper))


def _string_match(frame: GraphLowering, node: Node) -> None:
    attrs: StringMatchAttrs = node.attrs
    found = compile_pattern(attrs.pattern)
    _with_tables(frame, node, found.classes, found.moves, found.accepts)


def _tf_idf(frame: GraphLowering, node: Node) -> None:
    attrs: TfIdfAttrs = node.attrs
    tables = (
        np.array(attrs.counts, np.int64),
        np.array(attrs.places, np.int64),
        np.array(attrs.weights, np.float32),
    )
    ints = (MODES.index(attrs.mode), attrs.least, attrs.most, attrs.skips)
    _with_tables(frame, node, *tables, ints=ints)


HANDLE_CALLS: Mapping[str, Lower] = MappingProxyType(
    {
        "list_make": _make,
        "list_insert": _insert,
        "list_erase": _plain,
        "list_length": _plain,
        "list_expect": _expect,
        "list_at": _at,
        "list_concat": _concat,
        "list_split": _split,
        "string_concat": _plain,
        "string_split": _string_split,
        "string_case": _string_case,
        "string_remove": _string_remove,
        "string_match": _string_match,
        "string_rank": _plain,
        "string_format": _plain,
        "string_parse": _plain,
        "string_decode": _plain,
        "tf_idf": _tf_idf,
    }
)
