"""The instruction table has every class and field, and states how each operand is used."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest
from tcc.ir.program import (
    Allocate,
    Branch,
    CallOp,
    Check,
    Collective,
    CollectiveKind,
    Copy,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Place,
    PlanArena,
    ReadInt,
    Reduction,
    Relation,
    TensorRef,
    View,
    Wait,
)
from tcc.ir.program.operands import (
    bodies_of,
    buffers_of,
    defined_registers,
    renumbered,
    used_registers,
    walk_instructions,
)
from tcc.ir.program.table import CODES, INSTRUCTIONS, PLACE_CODES, PLACES, Kind
from tcc.ir.types import F32, I64

COPY = Copy(7, 8, 9)
CALL = CallOp("sort", (TensorRef(1, F32, (2, 3)),), (TensorRef(4, I64, (5,)),), (6, 7), (8,))


def test_every_class_has_its_rows_and_every_field_its_kind() -> None:
    assert list(CODES) == list(get_args(Instr))
    assert list(PLACE_CODES) == list(get_args(Place))
    for row in (*INSTRUCTIONS, *PLACES):
        compared = {field.name for field in fields(row.node) if field.compare}
        assert {field.name for field in row.fields} == compared
        visible = {part.name for part in row.text if not isinstance(part, str)}
        hidden = {field.name for field in row.fields} - visible
        unused = {IntOp.CONST: {"b"}, IntOp.RANK: {"a", "b"}, IntOp.SEED: {"a", "b"}}
        assert hidden <= {"op", *unused.get(row.operation, ())}
    assert {row.operation for row in INSTRUCTIONS if row.node is Let} == set(IntOp)


@pytest.mark.parametrize(
    ("instr", "used", "defined", "buffers"),
    [
        (Let(0, IntOp.CONST, 5), set(), {0}, ()),
        (Let(0, IntOp.DIM, 5, 6), set(), {0}, ()),
        (Let(0, IntOp.MIN, 5, 6), {5, 6}, {0}, ()),
        (ReadInt(0, 1, I64, 2), set(), {0}, (1,)),
        (Check(Relation.EQ, 1, 2, "no"), {1, 2}, set(), ()),
        (Allocate(1, 2, True), {2}, set(), (1,)),
        (View(1, 2, 3), {3}, set(), (1, 2)),
        (Launch(1, 2, (3, 4), (5,), 6), {2, 5, 6}, set(), (3, 4)),
        (Launch(1, 2, (3, 4), (5,)), {2, 5}, set(), (3, 4)),
        (CALL, {2, 3, 5}, {8}, (1, 4)),
        (COPY, {9}, set(), (7, 8)),
        (Branch(1, (COPY,), ()), set(), set(), (1,)),
        (Branch(-1, (COPY,), (), 2), {2}, set(), ()),
        (Loop(1, 2, 3, (COPY,)), {1}, {3}, (2,)),
        (PlanArena(1, (2, 3), (4, 5), (0, 1, -1, 2, 3, 0)), {4, 5}, {1, 2, 3}, ()),
        (Loop(1, -1, 3, (COPY,)), {1}, {3}, ()),
        (
            Collective(CollectiveKind.ALL_TO_ALL, Reduction.SUM, 1, 2, (3, 4), F32, 4, 5),
            {3, 4},
            set(),
            (1, 2),
        ),
        (Wait(5, 1, 2), set(), set(), (1, 2)),
        (Let(3, IntOp.RANK), set(), {3}, ()),
        (Let(3, IntOp.SEED), set(), {3}, ()),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__dataclass_fields__") else None,
)
def test_operands(
    instr: Instr, used: set[int], defined: set[int], buffers: tuple[int, ...]
) -> None:
    assert used_registers(instr) == used
    assert defined_registers(instr) == defined
    assert buffers_of(instr) == buffers


def test_bodies_are_walked_in_order() -> None:
    branch = Branch(1, (COPY,), (CALL,))
    loop = Loop(1, -1, 3, (branch, COPY))
    assert bodies_of(branch) == ((COPY,), (CALL,))
    assert list(walk_instructions((loop, CALL))) == [loop, branch, COPY, CALL, COPY, CALL]


def test_renumbering_moves_each_number_as_its_kind_says() -> None:
    moves = {
        "r": lambda n: n + 100,
        "b": lambda n: n + 200,
        "k": lambda n: n + 300,
        "g": lambda n: n + 400,
    }
    assert renumbered(Let(0, IntOp.CONST, 5), moves) == Let(100, IntOp.CONST, 5)
    assert renumbered(Let(0, IntOp.DIM, 5, 6), moves) == Let(100, IntOp.DIM, 5, 6)
    assert renumbered(Let(0, IntOp.ADD, 5, 6), moves) == Let(100, IntOp.ADD, 105, 106)
    assert renumbered(Launch(1, 2, (3,), (4,), 5), moves) == Launch(301, 102, (203,), (104,), 105)
    assert renumbered(Launch(1, 2, (), ()), moves) == Launch(301, 102, (), ())
    start = Collective(CollectiveKind.BROADCAST, Reduction.SUM, 1, 2, (3, 4), F32, 4, 5, 6)
    renumbered_start = replace(start, send=201, receive=202, counts=(103, 104))
    assert renumbered(start, moves) == renumbered_start
    assert renumbered(replace(start, group=7), moves) == replace(renumbered_start, group=407)
    assert renumbered(CALL, moves) == CallOp(
        "sort",
        (TensorRef(201, F32, (102, 103)),),
        (TensorRef(204, I64, (105,)),),
        (6, 7),
        (108,),
    )
    assert renumbered(Branch(1, (COPY,), ()), moves) == Branch(201, (COPY,), ())
    assert renumbered(Branch(-1, (), (), 2), moves, lambda body: (COPY, *body)) == Branch(
        -1, (COPY,), (COPY,), 102
    )
    assert renumbered(Loop(1, -1, 3, (COPY,)), {"b": moves["b"]}) == Loop(1, -1, 3, (COPY,))


def test_kinds_are_spelled_as_they_are_named() -> None:
    assert all(kind.text.upper() == kind.name for kind in Kind)
