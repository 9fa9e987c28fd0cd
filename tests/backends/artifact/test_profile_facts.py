"""Tests of the manifest's entry for profiles, against a step-by-step count of live bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.profile_facts import profile_facts
from tcc.ir.program import Arena, Buffer, Instr, IntOp, Launch, Let, Loop, Program
from tcc.ir.program.text import program_text
from tcc.runtime import profile_facts as profile_facts_of_runtime


def program(body: tuple[Instr, ...], sizes: list[int], symbolic: bool = False) -> Program:
    """Returns a program whose buffer n lies in the arena and has sizes[n] bytes, in register n."""
    op = IntOp.RANK if symbolic else IntOp.CONST
    lets = tuple(Let(n, op, size) for n, size in enumerate(sizes))
    buffers = tuple(Buffer(Arena(0, n)) for n in range(len(sizes)))
    return Program((), (), len(sizes), buffers, ("k",), 0, 0, (*lets, *body))


def unpacked(entry: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Returns the locations and live bytes of an entry, as the runtime reads them."""
    locations, live = profile_facts_of_runtime.unpacked_entry(entry, entry["steps"])
    return [*locations], [*live]


@pytest.mark.parametrize(
    "locations",
    [
        ["/layer.0/a", "/layer.1/a", "/layer.10/a", "/layer.2/a"],
        ["007", "0", "", "a1b2c3", "1.5e-7", "\0", "\u0663", "9" * 40, "-1", "x9"],
        ["</script>", '"', "\u2028", "{0}", "a\n1"],
    ],
)
def test_locations_come_back(locations: list[str]) -> None:
    body = tuple(Launch(0, 0, (0,), (), loc=location) for location in locations)
    assert unpacked(profile_facts(program(body, [8])))[0] == locations


def test_live_bytes_are_those_between_first_and_last_use() -> None:
    for seed in range(30):
        draw = np.random.default_rng(seed)
        sizes = [int(size) for size in draw.integers(1, 1000, 6)]
        uses = [tuple(int(b) for b in draw.choice(6, 2, replace=False)) for _ in range(10)]
        body = tuple(Launch(0, 0, buffers, (), loc=f"node {n}") for n, buffers in enumerate(uses))
        entry = profile_facts(program(body, sizes))
        locations, live = unpacked(entry)
        assert locations == [f"node {n}" for n in range(10)]
        spans = {
            b: [n for n, buffers_of_step in enumerate(uses) if b in buffers_of_step]
            for b in range(6)
        }
        for step in range(10):
            expected = [sizes[b] for b, at in spans.items() if at and at[0] <= step <= at[-1]]
            assert live[step] == sum(expected)
        assert entry["arena_bound"] == max(live)
        assert entry["steps"] == 10


def test_a_buffer_of_a_loop_and_of_its_outside_lives_in_the_whole_loop() -> None:
    inner = tuple(Launch(0, 0, (n,), ()) for n in (0, 1))
    body = (Launch(0, 0, (0,), ()), Loop(0, -1, 0, inner), Launch(0, 0, (1,), ()))
    assert unpacked(profile_facts(program(body, [100, 10])))[1] == [100, 110, 110, 10]


def test_sizes_that_inputs_decide_leave_no_live_bytes() -> None:
    entry = profile_facts(program((Launch(0, 0, (0,), (), loc="a"),), [8], symbolic=True))
    assert (unpacked(entry), entry["arena_bound"]) == ((["a"], []), None)


def test_steps_of_one_kind_pack_well() -> None:
    body = tuple(Launch(0, 0, (n % 2,), (), loc=f"/layer.{n}/MatMul") for n in range(20_000))
    entry = profile_facts(program(body, [4096, 8192]))
    encoded = encode_program(program(body, [4096, 8192]))
    assert len("".join(entry["packed"])) < len(encoded) / 100


def test_locations_change_neither_bytes_nor_text() -> None:
    named, plain = (program((Launch(0, 0, (0,), (), loc=loc),), [8]) for loc in ("a", ""))
    assert named == plain
    assert program_text(named) == program_text(plain)
    assert encode_program(named) == encode_program(plain)
