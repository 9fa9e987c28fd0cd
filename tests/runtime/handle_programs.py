"""Hand-written programs on strings and lists: one with growing values, and some with wrong handles
or sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from programs import Builder
from tcc.ir.lists import sequence_of
from tcc.ir.program import (
    Allocate,
    Branch,
    BufferId,
    CallOp,
    Copy,
    Dynamic,
    Input,
    IntOp,
    Let,
    Loop,
    Output,
    Port,
    Program,
    TensorRef,
    Weight,
)
from tcc.ir.types import DTYPES

WORD, STRING, LIST = DTYPES["u64"], 3 << 8 | 128, 3 << 8 | 64


def growing(trips: int = 12) -> Program:
    """Returns y, m = strings that double in a loop, and a list with an entry from every trip.

    A buffer grows and keeps its content; non-zero handles are counted, then written.
    """
    b = Builder()
    three, eight, bytes_ = b.const(3), b.const(8), b.const(24)
    one, page = b.const(1), b.const(5000)
    b.input("s", "string", [three], "[3]")
    first_input, zeros = b.buffer(Input(0)), b.buffer(Weight(0, 4096))
    y, m = b.output("y", "string", [three], "[3]"), _list_output(b)
    text_list, text, list_, places = (b.buffer(Dynamic()) for _ in range(4))
    for buffer, size in ((y, bytes_), (m, eight), (text, bytes_), (list_, eight)):
        b.allocate(buffer, size)
    b.body += [Copy(list_, zeros, eight), Copy(text, first_input, bytes_)]
    counter, count, more, size, room = (b.register() for _ in range(5))
    strings, list_ref = TensorRef(text, WORD, (three,)), TensorRef(list_, WORD, ())
    front = TensorRef(zeros, DTYPES["i64"], ())
    body = (
        Let(more, IntOp.ADD, counter, one),
        Let(size, IntOp.MUL, more, page),
        Allocate(text_list, size, True),
        _call("string_concat", (strings, strings), (strings,)),
        CallOp("non_zero_count", (strings,), (), (), (count,)),
        Let(room, IntOp.MUL, count, eight),
        Allocate(places, room),
        _call("non_zero", (strings,), (TensorRef(places, DTYPES["i64"], (one, count)),)),
        _call("list_insert", (list_ref, strings), (list_ref,), STRING),
        Branch(zeros, (), (_call("list_insert", (list_ref, strings, front), (list_ref,), STRING),)),
    )
    b.body.append(Loop(b.const(trips), -1, counter, body))
    b.body += [Copy(y, text, bytes_), Copy(m, list_, eight)]
    return b.program()


def lying() -> Iterator[tuple[str, Program]]:
    """Yields programs that decode, and whose run must be refused."""
    yield "a list that holds itself", _self_holding()
    yield "lists nested without an end", _nested(3000)
    yield "more entries than memory", _nested(7, 1000)
    yield "pieces of a wider type", _split_as(64)
    yield "pieces that are lists", _split_as(LIST)
    yield "rows of no size", _rows_of_no_size()
    yield "columns that are not there", _far_columns()


def _call(op: str, inputs: Sequence[TensorRef], outputs: Sequence[TensorRef], *ints: int) -> CallOp:
    return CallOp(op, tuple(inputs), tuple(outputs), ints)


def _list_output(b: Builder) -> BufferId:
    b.outputs.append(Port("m", sequence_of(DTYPES["i64"]), (), "sequence(i64)"))
    return b.buffer(Output(len(b.outputs) - 1), "m")


def _word(b: Builder, dtype: str = "u64") -> TensorRef:
    """Returns a new word that is zero: an empty list."""
    buffer, eight = b.buffer(Dynamic()), b.const(8)
    b.allocate(buffer, eight)
    b.body.append(Copy(buffer, _zeros(b), eight))
    return TensorRef(buffer, DTYPES[dtype], ())


def _zeros(b: Builder) -> BufferId:
    return b.buffer(Weight(0, 4096))


def _self_holding() -> Program:
    """Returns a list of two, the first list of the run: its length is the handle of the next list,
    which becomes the entry of itself."""
    b = Builder()
    m = _list_output(b)
    b.allocate(m, b.const(8))
    entry, first, length = _word(b, "i64"), _word(b), _word(b, "i64")
    itself = TensorRef(length.buffer, WORD, ())
    b.body += [
        _call("list_make", (entry, entry), (first,), 64),
        _call("list_length", (first,), (length,)),
        _call("list_make", (itself,), (TensorRef(m, WORD, ()),), LIST),
    ]
    return b.program()


def _nested(depth: int, width: int = 1) -> Program:
    """Returns a list of `width` equal lists, each of `width` equal lists, to a depth of `depth`."""
    b = Builder()
    m, list_ = _list_output(b), _word(b)
    trips, counter = b.const(depth), b.register()
    b.allocate(m, b.const(8))
    body = (_call("list_make", (list_,) * width, (list_,), LIST),)
    b.body += [Loop(trips, -1, counter, body), Copy(m, list_.buffer, b.const(8))]
    return b.program()


def _split_as(word: int) -> Program:
    """Returns eight bytes split in pieces of one byte, each declared as an entry of type `word`."""
    b = Builder()
    m, eight = _list_output(b), b.const(8)
    b.allocate(m, eight)
    list_ref, one = _word(b), _word(b, "i64")
    pieces = (TensorRef(_zeros(b), DTYPES["u8"], (eight,)), one)
    b.body += [
        _call("list_make", (one,), (list_ref,), 64),
        _call("list_length", (list_ref,), (one,)),
        _call("list_split", pieces, (TensorRef(m, WORD, ()),), 0, 1, word),
    ]
    return b.program()


def _rows_of_no_size() -> Program:
    """Returns a split of 256 strings into 2^56 pieces each, with room for no element: 256 * 2^56 is
    2^64."""
    b = Builder()
    many, none, wide = b.const(256), b.const(0), b.const(1 << 56)
    rows, counts = b.buffer(Dynamic()), b.buffer(Dynamic())
    b.allocate(rows, none)
    b.allocate(counts, b.const(2048))
    operand = TensorRef(_zeros(b), WORD, (many,))
    results = TensorRef(rows, WORD, (none, wide)), TensorRef(counts, DTYPES["i64"], (many,))
    b.body.append(_call("string_split", (operand,), results, -1, ord("b")))
    return b.program()


def _far_columns() -> Program:
    """Returns a TfIdf call without n-grams, but with three column numbers for a row without
    columns."""
    b = Builder()
    one, three, none = b.const(1), b.const(3), b.const(0)
    row = b.buffer(Dynamic())
    b.allocate(row, none)
    tables = ((none, "i64"), (one, "i64"), (three, "i64"), (three, "f32"))
    table_refs = [TensorRef(_zeros(b), DTYPES[dtype], (size,)) for size, dtype in tables]
    tokens = TensorRef(_zeros(b), DTYPES["i64"], (three,))
    result = TensorRef(row, DTYPES["f32"], (none,))
    b.body.append(_call("tf_idf", (tokens, *table_refs), (result,), 2, 1, 1, 0))
    return b.program()
