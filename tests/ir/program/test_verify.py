"""The verifier of host programs accepts correct programs and finds each violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tcc.errors import InternalError
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    CallOp,
    Check,
    Collective,
    CollectiveKind,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    PlanArena,
    Port,
    Program,
    RankGroup,
    ReadInt,
    Reduction,
    Relation,
    TensorRef,
    View,
    Wait,
    Weight,
)
from tcc.ir.program.verify import verify_program
from tcc.ir.types import BOOL, F32, I64, DType

# Registers: 0 n, 1 zero, 2 bytes, 3 counter, 4 free. Buffers have the order of their names below.
X, MIDDLE, W, POOL, ALIAS, Y = range(6)
ENTRY: tuple[Instr, ...] = (
    Let(0, IntOp.DIM, 0, 0),
    Let(1, IntOp.CONST, 0),
    Let(2, IntOp.MUL, 0, 0),
    Check(Relation.LE, 1, 0, "n is at least 0"),
)
WORK: tuple[Instr, ...] = (
    Allocate(Y, 2),
    Allocate(POOL, 2),
    View(ALIAS, POOL, 1),
    Launch(0, 0, (X, MIDDLE, W), (2,)),
    Loop(0, W, 3, (Copy(ALIAS, MIDDLE, 2), Branch(W, (Copy(MIDDLE, X, 2),), ()))),
    CallOp("sort", (TensorRef(X, F32, (0,)),), (TensorRef(POOL, I64, (0,)),), (0, 0)),
    Copy(Y, MIDDLE, 2),
)
PROGRAM = Program(
    inputs=(Port("x", F32, (0,), "[n]"),),
    outputs=(Port("y", F32, (0,), "[n]"),),
    registers=5,
    buffers=tuple(
        Buffer(place)
        for place in (Input(0), Arena(1, 2), Weight(0, 64), Dynamic(), Alias(), Output(0))
    ),
    kernels=("k",),
    scratch=0,
    arena=2,
    body=ENTRY + WORK,
)


def collective(
    kind: str,
    send: int = X,
    receive: int = MIDDLE,
    dtype: DType = F32,
    reduction: Reduction = Reduction.SUM,
    **given: Any,
) -> Collective:
    given = {"counts": (0,), "ranks": 2} | given
    return Collective(CollectiveKind[kind], reduction, send, receive, dtype=dtype, **given)


SUM, WAIT = collective("ALL_REDUCE"), Wait(0, X, MIDDLE)


@pytest.mark.parametrize(
    "body",
    [
        # while other buffers are touched, while bodies run, and with two collectives under way
        (SUM, collective("ALL_REDUCE", W, POOL, ticket=7), WAIT, Wait(7, W, POOL)),
        (SUM, Loop(0, -1, 3, (Copy(Y, W, 2),)), WAIT),
        # a trip starts the collective that the next trip waits for
        (SUM, Loop(0, -1, 3, (WAIT, Copy(MIDDLE, X, 2), SUM)), WAIT),
    ],
)
def test_collectives_under_way(body: tuple[Instr, ...]) -> None:
    verify_program(with_body(*WORK, *body))


def test_a_correct_program_passes() -> None:
    verify_program(PROGRAM)
    verify_program(
        with_body(
            *WORK,
            collective("ALL_REDUCE", ranks=0, reduction=Reduction.AVG),
            WAIT,
            collective("BROADCAST", ranks=0, root=5, dtype=I64),
            WAIT,
            collective("ALL_TO_ALL", ranks=1),
            WAIT,
            collective("ALL_TO_ALL", counts=(0, 1, 2, 3)),
            WAIT,
            collective("ALL_GATHER", counts=(0, 1, 2)),
            WAIT,
        )
    )


def with_body(*body: Instr) -> Program:
    return replace(PROGRAM, body=ENTRY + body)


def with_group(*members: tuple[int, ...], ranks: int = 2, group: int = 0) -> Program:
    body = (*WORK, collective("ALL_REDUCE", ranks=ranks, group=group), WAIT)
    return replace(with_body(*body), groups=(RankGroup("rows", members),))


def test_groups() -> None:
    verify_program(with_group((0, 1)))
    verify_program(with_group((5, 1, 2), (0, 9, 3), ranks=3))


@pytest.mark.parametrize(
    ("program", "pattern"),
    [
        (with_body(Let(4, IntOp.ADD, 3, 3), *WORK), "reads register 3"),
        (with_body(*WORK, Let(9, IntOp.CONST, 0)), "register 9 of 5"),
        (with_body(*WORK, Let(2, IntOp.CONST, 0)), "sizes the arena and is written again"),
        (replace(PROGRAM, arena=4), "the arena is sized by register 4"),
        (replace(PROGRAM, body=(*ENTRY, Let(4, IntOp.DIM, 0, 1), *WORK)), "dimension 1 of input 0"),
        (with_body(*WORK[2:]), "uses buffer 3 before"),
        (with_body(*WORK[1:]), "uses buffer 5 before"),
        (with_body(WORK[0], WORK[1], WORK[4]), "uses buffer 4 before"),
        (with_body(*WORK, Allocate(Y, 2)), "allocated twice"),
        (with_body(), "output y is not allocated"),
        (with_body(*WORK, Allocate(MIDDLE, 2)), "memory of its own"),
        (with_body(*WORK, Copy(X, MIDDLE, 2)), "read-only"),
        (with_body(*WORK, Copy(W, MIDDLE, 2)), "read-only"),
        (with_body(*WORK, Copy(99, MIDDLE, 2)), "buffer 99 of 6"),
        (with_body(*WORK, View(POOL, X, 1)), "is no alias"),
        (with_body(*WORK, Launch(1, 0, (), ())), "kernel 1 of 1"),
        (with_body(*WORK, collective("ALL_REDUCE", receive=W)), "read-only"),
        (with_body(*WORK, collective("ALL_REDUCE", counts=(4,))), "reads register 4"),
        (with_body(*WORK, collective("ALL_TO_ALL", counts=(0, 1, 2, 4))), "reads register 4"),
        *(
            (with_body(*WORK, collective(kind, counts=(0,) * n)), f"{n} counts for {kind.lower()}")
            for kind, n in (
                ("ALL_TO_ALL", 2),
                ("ALL_TO_ALL", 5),
                ("ALL_GATHER", 2),
                ("ALL_GATHER", 0),
                ("REDUCE_SCATTER", 3),
                ("ALL_REDUCE", 2),
                ("BROADCAST", 3),
            )
        ),
        (with_body(collective("ALL_REDUCE", send=POOL)), "uses buffer 3 before"),
        (with_body(*WORK, collective("ALL_REDUCE", dtype=BOOL)), "no collective takes"),
        (
            with_body(*WORK, collective("ALL_GATHER", reduction=Reduction.MAX)),
            "all_gather reduces nothing",
        ),
        (with_body(*WORK, collective("ALL_GATHER", ranks=0)), "rank 0 of 0"),
        (with_body(*WORK, collective("BROADCAST", root=2)), "rank 2 of 2"),
        (with_body(*WORK, collective("BROADCAST", root=-1)), "rank -1 of 2"),
        (with_group((0, 1), group=1), "group 1 of 1"),
        (with_group((0, 1), ranks=0), "0 ranks in group 0"),
        (with_group((0, 1), ranks=3), "3 ranks in group 0"),
        (with_group(), "a list of no rank"),
        (with_group((), ranks=0), "a list of no rank"),
        (with_group((0, 1), (2, -1)), "a list of no rank"),
        (with_group((0, 1), (2, 1)), "a rank twice"),
        (with_group((0, 1), (2,)), "lists of different lengths"),
        (with_body(*WORK, SUM), "a collective is not waited for"),
        (with_body(*WORK, WAIT), "no collective with this ticket"),
        (with_body(*WORK, SUM, WAIT, WAIT), "no collective with this ticket"),
        (with_body(*WORK, SUM, Wait(0, X, Y)), "no collective with this ticket"),
        (with_body(*WORK, SUM, Wait(1, X, MIDDLE)), "no collective with this ticket"),
        (with_body(*WORK, SUM, collective("ALL_REDUCE", W, POOL)), "ticket 0 is not free"),
        (with_body(*WORK, collective("ALL_REDUCE", ticket=1 << 16)), "ticket 65536 is not free"),
        (with_body(*WORK, SUM, Copy(Y, MIDDLE, 2), WAIT), "touches a buffer of the collective"),
        (with_body(*WORK, SUM, Copy(Y, X, 2), WAIT), "touches a buffer of the collective"),
        (with_body(*WORK, SUM, ReadInt(4, X, I64), WAIT), "touches a buffer"),
        (with_body(*WORK, SUM, Launch(0, 0, (MIDDLE,), ()), WAIT), "touches a buffer"),
        (with_body(*WORK, SUM, Loop(0, -1, 3, (Copy(Y, X, 2),)), WAIT), "touches a buffer"),
        (with_body(*WORK, SUM, Branch(X, (), ()), WAIT), "touches a buffer"),
        # access through an alias, and through a new allocation of the buffer
        (with_body(*WORK, collective("ALL_REDUCE", receive=POOL), Copy(ALIAS, X, 2)), "touches a"),
        (with_body(*WORK, collective("ALL_REDUCE", receive=ALIAS), Allocate(POOL, 2)), "touches a"),
        (with_body(*WORK, SUM, Branch(W, (WAIT,), ())), "a body ends with other collectives"),
        (with_body(*WORK, SUM, Branch(W, (WAIT,), (WAIT,))), "a body ends with other collectives"),
        (with_body(*WORK, Loop(0, -1, 3, (SUM,)), WAIT), "a body ends with other collectives"),
        (with_body(*WORK, ReadInt(4, X, F32)), "reads a size from f32"),
        (with_body(*WORK, Launch(0, 0, (), (), 6)), "reads register 6, which no path"),
        (with_body(*WORK, Branch(-1, (), ())), "one buffer or one register"),
        (with_body(*WORK, Branch(W, (), (), 0)), "one buffer or one register"),
        (with_body(*WORK, Loop(0, -5, 3, ())), "buffer -5 of 6"),
        (with_body(*WORK, PlanArena(3, (4,), (0,), (0, 1))), "lists of different lengths"),
        (with_body(*WORK, PlanArena(3, (4,), (0, 0), (0, 1, -1))), "lists of different lengths"),
        (with_body(Branch(W, (WORK[0],), ()), *WORK[1:]), "on some paths only"),
        (with_body(Loop(0, -1, 3, (WORK[0],)), *WORK[1:]), "on some paths only"),
        (
            with_body(*WORK, Branch(W, (Let(4, IntOp.CONST, 1),), ()), Let(3, IntOp.ADD, 4, 4)),
            "reads register 4",
        ),
        (
            replace(
                with_body(Let(4, IntOp.CONST, 1), *WORK),
                outputs=(Port("y", F32, (3,), "[k]"),),
            ),
            "the shape of the output needs register 3",
        ),
    ],
)
def test_broken_promises_are_found(program: Program, pattern: str) -> None:
    with pytest.raises(InternalError, match=pattern):
        verify_program(program)


def test_nesting_has_a_bound() -> None:
    def nest(depth: int) -> Program:
        body: tuple[Instr, ...] = ()
        for _ in range(depth):
            body = (Branch(W, body, ()),)
        return with_body(*WORK, *body)

    verify_program(nest(64))
    with pytest.raises(InternalError, match="64 bodies"):
        verify_program(nest(65))


def test_both_sides_of_a_branch_may_define_a_later_value() -> None:
    makers: tuple[Callable[[int], Instr], ...] = (
        lambda value: Let(4, IntOp.CONST, value),
        lambda value: Allocate(Y, 2),
    )
    then = tuple(make(1) for make in makers)
    otherwise = tuple(make(2) for make in makers)
    body = (Branch(W, then, otherwise), Let(3, IntOp.ADD, 4, 4), *WORK[1:])
    verify_program(with_body(*body))
