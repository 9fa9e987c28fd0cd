"""Tensors of strings: joining, splitting, changing case, matching, ordering, and numbers as text.

Each op is a C function of the runtime on handles. Equal strings have equal handles, so ops that
only move or compare elements need no C function. Texts are UTF-8; invalid bytes are kept.
"""

import re
from functools import cache
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import Index
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    OpSpec,
    OutArrays,
    OutTypes,
    Trait,
)
from tcc.ir.types import BOOL, F32, F64, I64, STRING, U8, DType, TensorType, element_count
from tcc.ops.data.regex import compile_pattern, matches
from tcc.ops.operands import require
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import INTEGERS, Shape
from tcc.zipped import zip_equal


@frozen
class StringSplitAttrs:
    """Splits at `delimiter`, or at white space if it is empty.

    There are at most `most` splits (-1: no limit). `size` is the largest number of pieces of an
    element.
    """

    delimiter: str
    most: int
    size: Index


@frozen
class StringCaseAttrs:
    upper: bool


@frozen
class StringRemoveAttrs:
    """`size` is the number of strings that remain.

    It is at least one: if none remain, the result is one empty string.
    """

    size: Index


@frozen
class StringMatchAttrs:
    """`pattern` is a regular expression of RE2's syntax."""

    pattern: str


@frozen
class StringParseAttrs:
    """`to` is the element type of the numbers."""

    to: DType


@frozen
class StringDecodeAttrs:
    """`shape` is the shape of the resulting strings.

    The operands are the bytes of all strings and the position where each string ends.
    """

    shape: Shape


def strings(texts: object) -> Array:
    """Returns nested lists of `str` as an object array."""
    return np.array(texts, object)


def encoded(text: object) -> bytes:
    """Returns the UTF-8 bytes of a string, and the invalid bytes that `decoded` kept in it."""
    return str(text).encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """Decodes UTF-8; invalid bytes survive a round trip: encoded(decoded(data)) == data."""
    return data.decode("utf-8", "surrogateescape")


def _texts(*types: TensorType) -> TensorType:
    """Returns the first operand's type; raises ValueError unless all operands are strings."""
    for number, type_ in enumerate(types):
        require(type_.dtype is STRING, f"operand {number} is {type_!r}, not strings")
    return types[0]


def _each(function: object, x: Array, dtype: type) -> Array:
    out: Array = np.empty(x.shape, dtype)
    out.reshape(-1)[:] = [function(text) for text in x.reshape(-1)]  # type: ignore[operator]
    return out


# ---- concat --------------------------------------------------------------------------------------


def _concat_infer(_attrs: NoAttrs, x: TensorType, y: TensorType) -> TensorType:
    _texts(x, y)
    require(x.shape == y.shape, f"{x!r} and {y!r} have different shapes")
    return x


def _concat_reference(_attrs: NoAttrs, x: Array, y: Array) -> Array:
    return np.asarray(x + y, object)


# ---- split ---------------------------------------------------------------------------------------


def split_text(text: str, delimiter: str, max_splits: int) -> list[str]:
    """Returns the pieces of a string after at most `max_splits` splits; -1 means no limit.

    An empty delimiter splits at white space.
    """
    if delimiter:
        return text.split(delimiter, max_splits)
    # White space is that of ASCII, as for `bytes.split`.
    return [decoded(piece) for piece in encoded(text).rstrip().split(None, max_splits)]


def _split_infer(attrs: StringSplitAttrs, x: TensorType) -> OutTypes:
    _texts(x)
    return TensorType(STRING, (*x.shape, attrs.size)), TensorType(I64, x.shape)


def _split_reference(attrs: StringSplitAttrs, x: Array) -> OutArrays:
    pieces = [split_text(str(t), attrs.delimiter, attrs.most) for t in x.reshape(-1)]
    counts = np.array([len(p) for p in pieces], np.int64)
    out = np.full((len(pieces), int(counts.max(initial=0))), "", object)
    for row, row_pieces in zip_equal(out, pieces):
        row[: len(row_pieces)] = row_pieces
    return out.reshape(*x.shape, out.shape[1]), counts.reshape(x.shape)


# ---- case ----------------------------------------------------------------------------------------


def change_case(text: str, upper: bool) -> str:
    """Returns `text` in upper or lower case; each character changes independently of its
    neighbours."""
    return "".join(c.upper() if upper else c.lower() for c in text)


@cache
def case_table(upper: bool) -> Array:
    """Returns the table of characters that change case, in ascending order.

    A row is (character, up to three replacements, padded with 0).
    """
    characters = [*map(chr, range(0x110000))]
    pairs = zip_equal(characters, map(str.upper if upper else str.lower, characters))
    rows = [(*map(ord, old + new), 0, 0)[:4] for old, new in pairs if old != new]
    return np.array(rows, np.int32)


def _case_reference(attrs: StringCaseAttrs, x: Array) -> Array:
    return _each(lambda t: change_case(str(t), attrs.upper), x, object)


# ---- remove --------------------------------------------------------------------------------------


def _remove_infer(
    attrs: StringRemoveAttrs, x: TensorType, key: TensorType, stops: TensorType
) -> TensorType:
    _texts(x, key, stops)
    require(x.rank == 1 and x.shape == key.shape, f"{x!r} and {key!r} are no vectors of one size")
    require(stops.rank == 1, f"{stops!r} is no vector")
    return TensorType(STRING, (attrs.size,))


def _remove_reference(_attrs: StringRemoveAttrs, x: Array, key: Array, stops: Array) -> Array:
    stop = set(stops)
    remaining = [text for text, k in zip_equal(x, key) if k not in stop]
    return strings(remaining or [""])


# ---- match ---------------------------------------------------------------------------------------


def _match_infer(attrs: StringMatchAttrs, x: TensorType) -> TensorType:
    compile_pattern(attrs.pattern)  # raises ValueError for an invalid pattern
    return TensorType(BOOL, _texts(x).shape)


def _match_reference(attrs: StringMatchAttrs, x: Array) -> Array:
    automaton = compile_pattern(attrs.pattern)
    return _each(lambda t: matches(automaton, encoded(t)), x, np.bool_)


# ---- rank ----------------------------------------------------------------------------------------


def _rank_infer(_attrs: NoAttrs, x: TensorType) -> OutTypes:
    _texts(x)
    return TensorType(I64, x.shape), TensorType(STRING, (element_count(x.shape),))


def _rank_reference(_attrs: NoAttrs, x: Array) -> OutArrays:
    keys = [encoded(text) for text in x.reshape(-1)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    first: dict[bytes, int] = {}
    for place, number in enumerate(order):
        first.setdefault(keys[number], place)
    ranks = np.array([first[k] for k in keys], np.int64).reshape(x.shape)
    ordered = np.empty(len(keys), object)
    ordered[:] = [x.reshape(-1)[n] for n in order]
    return ranks, ordered


# ---- numbers -------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.I | re.A
)
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.A)


def number_text(value: Any, dtype: DType) -> str:
    """Returns the shortest text that reads back as the number.

    A float has at least one digit after the point.
    """
    if dtype is BOOL:
        return "1" if value else "0"
    if dtype.is_integer:
        return str(int(value))
    number = float(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    digits = next(
        d
        for d in range(1, 18)
        if dtype.carrier.type(f"{number:.{d}g}") == dtype.carrier.type(number)
    )
    return f"{number:.{digits}g}"


def text_number(text: str, dtype: DType) -> object:
    """Returns the number that a text denotes; raises ValueError if `dtype` has no such number."""
    if dtype is BOOL:
        raise ValueError("strings do not become bool")
    if dtype.is_float:
        require(_NUMBER.fullmatch(text) is not None, f"{text[:40]!r} is no number")
        return float(text)
    require(_INTEGER.fullmatch(text) is not None, f"{text[:40]!r} is no integer")
    info = np.iinfo(dtype.carrier)
    require(info.min <= int(text) <= info.max, f"{text[:40]!r} is no {dtype.name}")
    return int(text)


def _format_infer(_attrs: NoAttrs, x: TensorType) -> TensorType:
    require(x.dtype in _NUMBERS, f"{x!r} holds no numbers")
    return TensorType(STRING, x.shape)


def _format_reference(_attrs: NoAttrs, x: Array) -> Array:
    kinds = {d.carrier: d for d in _NUMBERS}
    return _each(lambda v: number_text(v, kinds[x.dtype]), x, object)


def _parse_infer(attrs: StringParseAttrs, x: TensorType) -> TensorType:
    require(attrs.to in _NUMBERS and attrs.to is not BOOL, f"strings do not become {attrs.to.name}")
    return TensorType(attrs.to, _texts(x).shape)


def _parse_reference(attrs: StringParseAttrs, x: Array) -> Array:
    numbers = _each(lambda t: text_number(str(t), attrs.to), x, object)
    return numbers.astype(attrs.to.carrier)


# ---- decode --------------------------------------------------------------------------------------


def _decode_infer(attrs: StringDecodeAttrs, data: TensorType, ends: TensorType) -> TensorType:
    require(data.dtype is U8 and ends.dtype is I64, "bytes and their ends are u8 and i64")
    return TensorType(STRING, attrs.shape)


def _decode_reference(attrs: StringDecodeAttrs, data: Array, ends: Array) -> Array:
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    out = np.empty(len(ends), object)
    out[:] = [decoded(data[a:b].tobytes()) for a, b in zip_equal(starts, ends)]
    return out.reshape(tuple(int(d.const) for d in attrs.shape))


def pack_strings(x: Array) -> tuple[Array, Array]:
    """Returns the concatenated bytes of an array of strings, and where each string ends."""
    texts = [encoded(text) for text in x.reshape(-1)]
    ends = np.cumsum([len(text) for text in texts]).astype(np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), ends


# ---- rows of the op table ------------------------------------------------------------------------

_OPAQUE = Trait.OPAQUE
_NUMBERS = (BOOL, *INTEGERS, F32, F64)


def _row(
    name: str, attrs: type, infer: Function, reference: Function, doc: str, **more: Any
) -> OpSpec:
    return op_row(name, attrs, infer, reference, (STRING,), doc, **more)


OPS = (
    _row(
        "string_concat", NoAttrs, _concat_infer, _concat_reference,
        "The concatenated strings of two tensors.",
    ),
    _row(
        "string_split", StringSplitAttrs, _split_infer, _split_reference,
        "Pieces of strings along a new last axis, padded with empty strings; and their numbers.",
        traits=_OPAQUE,
    ),
    _row(
        "string_case", StringCaseAttrs, lambda _attrs, x: _texts(x), _case_reference,
        "Every character in upper or lower case.",
    ),
    _row(
        "string_remove", StringRemoveAttrs, _remove_infer, _remove_reference,
        "x without the strings whose keys are in `others`; operands (x, keys, others).",
        traits=_OPAQUE,
    ),
    _row(
        "string_match", StringMatchAttrs, _match_infer, _match_reference,
        "True where a regular expression matches the whole string.",
        onnx=OnnxBinding("RegexFullMatch", since=20),
    ),
    _row(
        "string_rank", NoAttrs, _rank_infer, _rank_reference,
        "The rank of each string among all, by bytes; and the sorted strings.",
    ),
    _row(
        "string_format", NoAttrs, _format_infer, _format_reference,
        "Numbers as text: the shortest text that reads back as the number.",
    ),
    _row(
        "string_parse", StringParseAttrs, _parse_infer, _parse_reference,
        "Numbers from text; the run fails if a text is no number.",
    ),
    _row(
        "string_decode", StringDecodeAttrs, _decode_infer, _decode_reference,
        "Strings from their bytes.",
        traits=_OPAQUE,
    ),
)  # fmt: skip
