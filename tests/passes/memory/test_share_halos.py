"""Values of a chain share a buffer with its halo where that is right and saves memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tcc.ir.program import (
    Arena,
    Buffer,
    BufferId,
    CallOp,
    Copy,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Program,
    TensorRef,
)
from tcc.ir.types import F32
from tcc.passes.memory.share_halos import share_halos

KINDS = 3  # kinds of halos: a buffer of kind k has (k + 1) * 64 bytes and the fill k


def fill(buffer: BufferId, kind: int) -> CallOp:
    return CallOp("fill_halo", (), (TensorRef(buffer, F32, (kind,)),), (kind, 1, 1))


def program(
    kinds: Sequence[int], reads: Sequence[Sequence[int]], *, copied: bool = False
) -> Program:
    """Returns a program whose step n fills the halo of value n, of kind kinds[n], and computes the
    value from values reads[n].

    With `copied`, the last value is copied at the end.
    """
    buffers = [Buffer(Input(0))] + [Buffer(Arena(-1, kind)) for kind in kinds]
    body: list[Instr] = [Let(k, IntOp.CONST, (k + 1) * 64) for k in range(KINDS)]
    for number, kind in enumerate(kinds):
        body.append(fill(number + 1, kind))
        operands = tuple(r + 1 for r in reads[number]) or (0,)
        body.append(Launch(0, 0, (*operands, number + 1), ()))
    if copied:
        body.append(Copy(0, len(kinds), 0))
    return Program((), (), KINDS, tuple(buffers), ("k",), 0, -1, tuple(body))


def fills(found: Program) -> list[BufferId]:
    return [i.outputs[0].buffer for i in found.body if isinstance(i, CallOp)]


def results(found: Program) -> list[BufferId]:
    return [i.buffers[-1] for i in found.body if isinstance(i, Launch)]


def run(found: Program) -> list[tuple[object, ...]]:
    """Returns for each launch a term of the values that it read, with the halos that it saw."""
    values: dict[BufferId, object] = {0: "input"}
    halos: dict[BufferId, int] = {}
    terms: list[tuple[object, ...]] = []
    for instr in found.body:
        if isinstance(instr, CallOp):
            halos[instr.outputs[0].buffer] = instr.ints[0]
        elif isinstance(instr, Launch):
            *operands, target = instr.buffers
            term = (*((values[b], halos.get(b)) for b in operands), halos[target])
            values[target] = term
            terms.append(term)
    return terms


def peak(found: Program) -> int:
    """Returns the most bytes of buffers between their first and last use at one time."""
    uses: dict[BufferId, list[int]] = {}
    for position, instr in enumerate(found.body):
        if isinstance(instr, CallOp):
            uses.setdefault(instr.outputs[0].buffer, []).append(position)
        elif isinstance(instr, Launch):
            for buffer in instr.buffers:
                uses.setdefault(buffer, []).append(position)
    size = {}
    for number, buffer in enumerate(found.buffers):
        if isinstance(buffer.place, Arena):
            size[number] = (buffer.place.size + 1) * 64
    return max(
        sum(size[n] for n, at in uses.items() if n in size and at[0] <= p <= at[-1])
        for p in range(len(found.body))
    )


def test_every_other_value_of_a_chain_shares() -> None:
    shared = share_halos(program([1, 1, 1, 1], [[], [0], [1], [2]]))
    assert results(shared) == [1, 2, 1, 2]
    assert fills(shared) == [1, 2]


def test_other_kinds_do_not_share() -> None:
    original = program([0, 1, 2], [[], [0], [1]])
    assert share_halos(original) is original


def test_a_value_that_is_still_needed_keeps_its_buffer() -> None:
    shared = share_halos(program([1, 1, 1], [[], [0], [0, 1]]))
    assert results(shared) == [1, 2, 3]


def test_sharing_takes_no_more_memory() -> None:
    # Between the two small values, one large value is computed from another.
    original = program([0, 2, 2, 0], [[], [0], [1], [2]])
    assert share_halos(original) is original


def test_buffers_that_copies_use_stay() -> None:
    shared = share_halos(program([1, 1, 1], [[], [0], [1]], copied=True))
    assert results(shared) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_compute_the_same(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.randrange(KINDS) for _ in range(12)]
    reads = [[rng.randrange(max(0, n - 3), n) for _ in range(2)] if n else [] for n in range(12)]
    original = program(kinds, reads)
    shared = share_halos(original)
    assert run(shared) == run(original)
    assert peak(shared) <= peak(original)
