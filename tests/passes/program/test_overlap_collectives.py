"""Collectives start early and are waited for late, around other instructions that touch their
buffers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.program import Collective, Program
from tcc.ir.program.operands import walk_instructions
from tcc.ir.program.text import program_text
from tcc.ir.program.verify import verify_program
from tcc.ops.collective import CollectiveAttrs
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.overlap_collectives import overlap_collectives

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.lib.oracle.program.parse import parse_program
from tests.lib.oracle.ranks import Rank, exchanged, in_lockstep

Array = np.ndarray[Any, np.dtype[Any]]
SIZE = 64
TEXT = """\
program registers 6 scratch 0 arena none
  input "x" : f32[r0] "[n]"
  output "y" : f32[r0] "[n]"
  buffer b0 = input(0) "x"
  buffer b1 = output(0) "y"
  buffer b2 = arena(none, r1) ""
  buffer b3 = arena(none, r1) ""
  buffer b4 = arena(none, r1) ""
  buffer b5 = arena(none, r1) ""
  buffer b6 = arena(none, r1) ""
  buffer b7 = alias() ""
  buffer b8 = weight(0, 64) ""
{
  r0 = const 16
  r1 = const 64
  r2 = const 0
  allocate b1 r1
BODY
}
"""


def program(*lines: str) -> Program:
    return parse_program(TEXT.replace("BODY", "\n".join(lines)))


def start(send: int, receive: int, count: str = "r0", ticket: int = 0) -> str:
    operation = f"all_reduce sum b{receive} = b{send} ({count})"
    return f"collective {operation} : f32 ranks 0 root 0 t{ticket}"


def wait(send: int, receive: int, ticket: int = 0) -> str:
    return f"wait t{ticket} b{receive} = b{send}"


def both(send: int, receive: int) -> str:
    return f"{start(send, receive)} {wait(send, receive)}"


def copy(source: int, target: int) -> str:
    return f"copy b{target} = b{source} r1"


LOOP = "loop r3 < r0 { copy b5 = b0 r1 }"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # a start moves up to the producer of the operand, a wait down to the reader of the result
        (
            (copy(0, 2), copy(0, 3), both(2, 4), copy(0, 5), copy(4, 6)),
            (copy(0, 2), start(2, 4), copy(0, 3), copy(0, 5), wait(2, 4), copy(4, 6)),
        ),
        # two collectives under way have different tickets; a ticket is free after its wait
        (
            (copy(0, 2), both(2, 4), both(0, 5), copy(4, 6), both(6, 3), copy(3, 1)),
            (
                copy(0, 2), start(2, 4), start(0, 5, ticket=1), wait(2, 4), copy(4, 6),
                start(6, 3), wait(0, 5, 1), wait(6, 3), copy(3, 1),
            ),
        ),
        # a reader of the result or a writer of the operand does not move in between
        ((copy(0, 4), both(4, 2), copy(2, 3)),) * 2,
        ((copy(8, 3), copy(3, 4), both(3, 2), copy(2, 3)),) * 2,
        # memory is shared through views
        (("view b7 = b2 + r2", copy(0, 7), both(2, 4), copy(4, 1)),) * 2,
        (("view b7 = b4 + r2", both(8, 7), copy(4, 1)),) * 2,
        # bodies are passed as a whole, if they do not touch the buffers
        (
            (copy(0, 2), LOOP, both(2, 4), copy(0, 3), "branch r0 { } else { copy b1 = b4 r1 }"),
            (
                copy(0, 2), start(2, 4), LOOP, copy(0, 3), wait(2, 4),
                "branch r0 { } else { copy b1 = b4 r1 }",
            ),
        ),
        # computed sizes stay before the collective; collectives in bodies stay before and after
        (("r4 = add(r0, r2)", f"{start(8, 4, 'r4')} {wait(8, 4)}", copy(4, 1)),) * 2,
        ((f"loop r3 < r0 {{ {both(8, 5)} }}", both(8, 4), f"loop r3 < r0 {{ {both(8, 5)} }}"),) * 2,
        # collectives move within bodies too; tickets of collectives under way outside are not
        # reused
        (
            (copy(0, 2), both(2, 4), f"branch r0 {{ {copy(0, 3)} {both(8, 5)} }} else {{ }}"),
            (
                copy(0, 2), both(2, 4),
                f"branch r0 {{ {start(8, 5)} {copy(0, 3)} {wait(8, 5)} }} else {{ }}",
            ),
        ),
        (
            (copy(0, 2), f"loop r3 < r0 {{ {both(8, 5)} }}", both(2, 4), copy(0, 3)),
            (copy(0, 2), f"loop r3 < r0 {{ {both(8, 5)} }}", start(2, 4), copy(0, 3), wait(2, 4)),
        ),
    ],
)  # fmt: skip
def test_programs(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    overlapped = overlap_collectives(program(*before))
    assert program_text(overlapped) == program_text(program(*after))


def test_a_program_without_collectives_is_left_alone() -> None:
    original = program(copy(0, 1))
    assert overlap_collectives(original) is original


def on_two_ranks(made: Program, xs: list[Array]) -> list[Array]:
    def run(rank: Rank) -> Array:
        def exchange(node: Collective, x: Array) -> Array:
            call = (node.reduction, node.counts)
            return exchanged(rank, node.kind, CollectiveAttrs(), x, node.counts, call)

        weights = np.full(SIZE, 1, np.uint8)
        return evaluate_program(made, (), [xs[rank.number]], weights, exchange=exchange)[0]

    return in_lockstep(2, run)


@pytest.mark.parametrize("seed", range(16))
def test_overlapped_random_programs_compute_the_same(seed: int) -> None:
    """The programs have copies and sums among a few buffers, also in a loop, before and after it.
    Arena bytes are poisoned where the plan says that nothing is live."""
    rng = random.Random(seed)

    def some(n: int, written_buffers: set[int]) -> list[str]:
        lines = []
        for _ in range(n):
            target = rng.choice([2, 3, 4, 5, 6])
            source = rng.choice(sorted(written_buffers - {target}))
            lines.append(rng.choice([copy, copy, both])(source, target))
            written_buffers.add(target)
        return lines

    written_buffers = {0, 8}
    lines = some(8, written_buffers)
    inside = " ".join(some(4, set(written_buffers)))
    lines += [
        f"loop r3 < r4 {{ {inside} }}",
        *some(6, written_buffers),
        copy(rng.choice(sorted(written_buffers)), 1),
    ]
    before = program("r4 = const 2", *lines)
    xs = [np.float32(10 * rank) + np.arange(16, dtype=np.float32) for rank in range(2)]
    after = overlap_collectives(before)
    assert len(list(walk_instructions(after.body))) == len(list(walk_instructions(before.body)))
    results = []
    for one in (before, after):
        planned = plan_arena(one, arena_planner())
        verify_program(planned)
        results.append(on_two_ranks(planned, xs))
    np.testing.assert_array_equal(results[0], results[1])


def test_buffers_of_a_pending_collective_stay_reserved() -> None:
    """The operand of the first sum has no other reader, but nothing else lies there before its
    wait."""
    original = program(copy(0, 2), both(2, 4), copy(8, 3), both(3, 5), copy(5, 6), copy(4, 1))
    planned = plan_arena(overlap_collectives(original), arena_planner())
    xs = [np.float32(10 * rank) + np.arange(16, dtype=np.float32) for rank in range(2)]
    for output in on_two_ranks(planned, xs):
        np.testing.assert_array_equal(output, xs[0] + xs[1])
