"""The runtime does not trust programs: kernels get the memory that they need, or do not run."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mutants
import onnx
import pytest
from sanitized import Sanitized, run_sanitized
from tcc.artifact import read_program
from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.kernel_needs import encode_needs
from tcc.driver import compile_model
from tcc.ir.program import Arena, Instr, IntOp, Launch, Let, Program, Weight
from tcc.ir.tile import TileKernel
from tcc.options import read_options

from tests.lib.oracle.program.decode import decode_program
from tests.processes import finished


class Trials:
    """Holds artifacts of `mutants.MODELS`, and runs them with other programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = mutants.build_runner(folder)
        self.artifact = cache(lambda name: mutants.compiled(name, folder))

    def program(self, name: str) -> Program:
        return decode_program(read_program(self.artifact(name)))

    def run(self, name: str, programs: list[bytes]) -> mutants.Outcome:
        return mutants.run(self._runner, self.artifact(name), programs)

    def refused(self, name: str, program: Program) -> bool:
        """Returns True if the artifact refuses to run this program."""
        outcome = self.run(name, [encode_program(program)])
        assert not outcome.signals
        return outcome.refused == 1


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("name", ["dense", "convolutions", "loop"])
def test_no_program_with_other_words_ends_a_process(trials: Trials, name: str) -> None:
    rng = random.Random(f"mutants of {name}")
    program = read_program(trials.artifact(name))
    outcome = trials.run(name, list(mutants.mutants(program, 250, rng)))
    assert outcome.signals == ()
    assert outcome.ran > 25
    assert outcome.refused > 100


@pytest.mark.xdist_group("sanitized-runtime")
def test_holding_launches_against_needs_is_sound_itself(
    sanitized: Sanitized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same programs run in the runtime with sanitizers, where kernels do nothing."""
    tables: list[bytes] = []

    def encode(kernels: Sequence[TileKernel], scratch: int) -> bytes:
        tables.append(encode_needs(kernels, scratch))
        return tables[-1]

    monkeypatch.setattr("tcc.variants.encode_needs", encode)
    runner = sanitized.program("hostile", Path(__file__).with_name("hostile.c"))
    for name in ("convolutions", "attention", "data"):
        program = read_program(mutants.compiled(name, tmp_path))
        rng = random.Random(f"sanitized mutants of {name}")
        records = [program, *mutants.mutants(program, 300, rng)]
        path, needs = tmp_path / "records", tmp_path / "needs"
        path.write_bytes(b"".join(struct.pack("<q", len(r)) + r for r in records))
        needs.write_bytes(tables.pop())
        monkeypatch.setenv("HOSTILE_NEEDS", str(needs))
        kernels = str(len(decode_program(program).kernels))
        decoded, ran, of = map(int, run_sanitized(runner, str(path), kernels).split())
        assert 0 < ran <= decoded < of == len(records)


def _changed(program: Program, change: Callable[[Instr], Instr]) -> Program:
    return replace(program, body=tuple(map(change, program.body)))


def _launches(change: Callable[[Launch], Launch]) -> Callable[[Instr], Instr]:
    return lambda instr: change(instr) if isinstance(instr, Launch) else instr


def test_a_buffer_and_its_arena_made_smaller_are_refused(trials: Trials) -> None:
    """Offsets, sizes and the arena are consistent: only the kernel needs more."""
    program = trials.program("dense")
    (place,) = {b.place for b in program.buffers if isinstance(b.place, Arena)}
    sizes = {place.size, program.arena}

    def smaller(instr: Instr) -> Instr:
        small = isinstance(instr, Let) and instr.op is IntOp.CONST and instr.target in sizes
        return replace(instr, a=instr.a - 64) if small else instr

    assert trials.refused("dense", _changed(program, smaller))


@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_more_units_and_other_operands_are_refused(trials: Trials, name: str) -> None:
    program = trials.program(name)
    twice = program.registers

    def more(launch: Launch) -> Launch:
        return replace(launch, grid=twice)

    doubled = _changed(program, _launches(more))
    at = next(n for n, instr in enumerate(program.body) if isinstance(instr, Launch))
    lets = (Let(twice, IntOp.ADD, program.body[at].grid, program.body[at].grid),)
    body = (*doubled.body[:at], *lets, *doubled.body[at:])
    assert trials.refused(name, replace(program, registers=twice + 1, body=body))
    for change in (
        lambda launch: replace(launch, buffers=launch.buffers[:-1]),
        lambda launch: replace(launch, ints=(*launch.ints, 0)),
        lambda launch: replace(launch, buffers=launch.buffers[::-1]),
    ):
        assert trials.refused(name, _changed(program, _launches(change)))


def test_sizes_beyond_the_range_of_a_kernel_are_refused(trials: Trials) -> None:
    """The proof of one run holds for its sizes only."""
    program = trials.program("convolutions")
    for wrong in (-1, 1 << 40, (1 << 63) - 1):
        size = program.registers

        def other(launch: Launch, size: int = size) -> Launch:
            return replace(launch, ints=(size, *launch.ints[1:]))

        changed = _changed(program, _launches(other))
        body = (Let(size, IntOp.CONST, wrong), *changed.body)
        assert trials.refused("convolutions", replace(program, registers=size + 1, body=body))


def test_scratch_that_is_too_small_is_refused(trials: Trials) -> None:
    program = trials.program("dense")
    assert program.scratch
    assert trials.refused("dense", replace(program, scratch=program.scratch - 64))


def test_kernels_write_to_no_weights(trials: Trials) -> None:
    program = trials.program("dense")
    weights = [n for n, b in enumerate(program.buffers) if isinstance(b.place, Weight)]
    size = {n: program.buffers[n].place.size for n in weights}  # type: ignore[union-attr]
    largest = max(weights, key=lambda n: size[n])

    def onto(launch: Launch) -> Launch:
        return replace(launch, buffers=(*launch.buffers[:-1], largest))

    assert trials.refused("dense", _changed(program, _launches(onto)))


@pytest.mark.parametrize(
    "texts", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"a\xc3"]
)
def test_texts_that_are_no_text_are_refused(trials: Trials, texts: bytes) -> None:
    record = bytearray(read_program(trials.artifact("dense")))
    (count,) = struct.unpack_from("<q", record, 16)
    words: list[Any] = list(struct.unpack_from(f"<{count}q", record))
    strings = bytes(record[count * 8 :])
    at = strings.index(b"tcc_kernel_0")
    assert len(texts) < len(b"tcc_kernel_0")
    damaged = strings[:at] + texts.rjust(12, b"k") + strings[at + 12 :]
    assert trials.run("dense", [mutants.sealed(words, damaged)]).refused == 1


LISTS = """<ir_version: 9, opset_import: ["": 18]>
    g (float[10,20,30] x) => (seq(float[10,20,30]) y) { y = SequenceConstruct (x, x) }"""
LIED = """
import sys
import numpy as np
from tcc.runtime import RuntimeFailure, load
try:
    load(sys.argv[1], threads=1)(np.ones((10, 20, 30), np.float32))
except RuntimeFailure as failure:
    print(failure)
"""


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("optional(optional(f32))", "a result is not of its type"),
        ("sequence(i32[10,20,30])", "a result is not of its type"),
        ("sequence(e32[10,20,30])", "is no type of lists"),
        ("sequence((((((((((((())", "is no type of lists"),
        ("sequence)f32[10,20,30](", "is no type of lists"),
    ],
)
def test_types_of_lists_are_not_believed(tmp_path: Path, told: str, why: str) -> None:
    """Python reads results by a text in the artifact, which says where pointers lie."""
    path = tmp_path / "lists.so"
    options = read_options({"target": "cpu", "cpu": "x86-64-v3", "jobs": 1})
    compile_model(onnx.parser.parse_model(LISTS), options, path)
    data, name = path.read_bytes(), b"sequence(f32[10,20,30])"
    program = read_program(path)
    (count,) = struct.unpack_from("<q", program, 16)
    words: list[Any] = list(struct.unpack_from(f"<{count}q", program))
    lied = mutants.sealed(words, program[count * 8 :].replace(name, told.encode()))
    path.write_bytes(data.replace(program, lied))
    process = finished(sys.executable, "-c", LIED, path)
    assert process.returncode == 0, process.stderr
    assert why in process.stdout
