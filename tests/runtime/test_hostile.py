"""Damaged programs never crash the runtime: decoding and running under sanitizers."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import handle_programs
import programs
import pytest
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import HEADER_WORDS, encode_program
from tcc.ir.program import Program, RankGroup

# One worker compiles the runtime with sanitizers, even if tests are spread over several workers.
pytestmark = pytest.mark.xdist_group("sanitized-runtime")
GROUPS = (RankGroup("rows", ((0, 1), (2, 3))), RankGroup("columns", ((2, 0),)))


@pytest.fixture(scope="module")
def hostile(sanitized: Sanitized) -> Path:
    return sanitized.program("hostile", Path(__file__).with_name("hostile.c"))


def run(hostile: Path, records: Iterable[bytes], *mode: str) -> tuple[int, int, int]:
    """Returns how many of the records decode, how many of them run, and how many there are."""
    path = hostile.with_name(f"records.{os.getpid()}")  # two workers may run the program
    path.write_bytes(b"".join(struct.pack("<q", len(r)) + r for r in records))
    output = run_sanitized(hostile, str(path), str(len(programs.KERNEL_NAMES)), *mode)
    decoded, ran, of = map(int, output.split())
    return decoded, ran, of


def sealed(words: list[int], strings: bytes) -> bytes:
    """Returns the record with a right checksum, so that the decoder itself must find the damage."""
    body = struct.pack(f"<{len(words) - HEADER_WORDS}q", *words[HEADER_WORDS:])
    words[4] = zlib.crc32(body + strings)
    return struct.pack(f"<{len(words)}q", *words) + strings


def parts(record: bytes) -> tuple[list[int], bytes]:
    count = struct.unpack_from("<q", record, 16)[0]
    return list(struct.unpack_from(f"<{count}q", record)), record[count * 8 :]


def test_whole_programs_decode_and_run(hostile: Path) -> None:
    assert run(hostile, [encode_program(programs.mlp()[0])]) == (1, 1, 1)
    assert run(hostile, [encode_program(programs.planned())]) == (1, 1, 1)
    assert run(hostile, [encode_program(programs.collectives())]) == (1, 1, 1)
    assert run(hostile, [encode_program(programs.collectives(GROUPS))]) == (1, 1, 1)
    assert run(hostile, [encode_program(programs.every_instruction())])[0] == 1


def test_cut_and_flipped_programs_are_refused(hostile: Path) -> None:
    record = encode_program(programs.every_instruction())
    cuts = [record[:n] for n in range(len(record))]
    flips = []
    for at in range(len(record)):
        flipped = bytearray(record)
        flipped[at] ^= 1 << at % 8
        flips.append(bytes(flipped))
    assert run(hostile, cuts + flips)[0] == 0


def test_every_word_replaced_never_crashes(hostile: Path) -> None:
    """Loops are left out, because a damaged trip count is a long run and not a crash."""
    values = (0, 7, 60, -1, (1 << 62) + 3)
    records = []
    whole = (
        programs.mlp()[0],
        programs.planned(),
        programs.collectives(),
        programs.collectives(GROUPS),
        programs.no_loops(),
        programs.handles(),
    )
    for program in whole:
        words, strings = parts(encode_program(program))
        for at in range(HEADER_WORDS, len(words)):
            for value in values:
                damaged = list(words)
                damaged[at] = value
                records.append(sealed(damaged, strings))
    decoded, ran, of = run(hostile, records)
    assert 0 < ran < decoded < of


def test_random_damage_never_crashes(hostile: Path) -> None:
    rng = random.Random(2)
    words, strings = parts(encode_program(programs.no_loops()))
    records = []
    for _ in range(3000):
        damaged = list(words)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(HEADER_WORDS, len(words))
            damaged[at] = rng.choice((damaged[rng.randrange(5, len(words))], rng.randrange(-3, 30)))
        if rng.random() < 0.3:
            at = rng.randrange(HEADER_WORDS, len(words))
            del damaged[at : at + rng.randrange(1, 4)]
            damaged[2] = len(damaged)
        records.append(sealed(damaged, strings))
    assert run(hostile, records)[2] == 3000


def test_random_damage_of_strings_and_lists_never_crashes(hostile: Path) -> None:
    rng = random.Random(3)
    words, strings = parts(encode_program(programs.handles()))
    records = [sealed(list(words), strings)]
    for _ in range(3000):
        damaged = list(words)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(HEADER_WORDS, len(words))
            damaged[at] = rng.choice((damaged[rng.randrange(5, len(words))], rng.randrange(-3, 30)))
        records.append(sealed(damaged, strings))
    assert run(hostile, records[:1]) == (1, 1, 1)
    assert 1 < run(hostile, records)[1] < 3000


def test_deep_nesting_is_refused(hostile: Path) -> None:
    deep = programs.nested(60), programs.nested(200)
    assert run(hostile, [encode_program(program) for program in deep])[0] == 1


@pytest.mark.parametrize(("name", "program"), list(handle_programs.lying()))
def test_programs_that_lie_about_strings_and_lists_are_refused(
    hostile: Path, name: str, program: Program
) -> None:
    assert run(hostile, [encode_program(program)]) == (1, 0, 1), name


def test_element_types_and_ports_that_cannot_be_are_refused(hostile: Path) -> None:
    """The cases are a list with dimensions, strings updated in place, and opaque elements of one
    byte."""
    original = programs.handles()
    strings, list_ = original.inputs
    wide = replace(original, inputs=(strings, replace(list_, dims=strings.dims)))
    updated = replace(
        original, outputs=(replace(original.outputs[0], state=0), original.outputs[1])
    )
    words, texts = parts(encode_program(original))
    narrow = [3 << 8 | 8 if word == 3 << 8 | 128 else word for word in words]
    records = [encode_program(wide), encode_program(updated), sealed(narrow, texts)]
    assert run(hostile, records) == (0, 0, 3)


@pytest.mark.parametrize(
    "program",
    [
        programs.mlp()[0],
        replace(programs.mlp()[0], scratch=400),
        programs.handles(),
        handle_programs.growing(3),
        programs.planned(),
        programs.collectives(GROUPS),
    ],
    ids=["mlp", "scratch", "handles", "growing", "planned", "groups"],
)
def test_every_failing_allocation_is_reported_and_leaks_nothing(
    hostile: Path, program: Program
) -> None:
    record = encode_program(program)
    decoded, ran, of = run(hostile, [record], "fail")
    assert ran == 1
    assert of - decoded > 10  # more than 10 allocations failed, each in a separate try
    assert decoded > 5
