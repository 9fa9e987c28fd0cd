"""A sweep names each of five candidates whose code does harm, and writes the same lock as without
them.

The code of a candidate is wrapped in C on the way to the linker. Trials are really compiled and
checked; only their times are simulated, so that two sweeps can be compared.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.backends.generated import Generated
from tcc.cli.sweeping import peak_program
from tcc.debug import Trace
from tcc.options import read_options
from tcc.passes.choose.content import site
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.runtime.trial_runner import TrialRunner
from tcc.runtime.trials import Trial, Turn
from tcc.trials import TrialCompiler
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text
from tcc.tune.measurement import TIMED, Measurement
from tcc.tune.sweep import Effort, Sweep
from tcc.tune.verdicts import decide

TEXT = """
<ir_version: 9, opset_import: ["": 17]> m (float[40, 96] x) => (float[40] y) {
  a = MatMul(x, w0)
  b = Softmax(a)
  c = MatMul(b, w1)
  d = Softmax<axis = 0>(c)
  f = MatMul(d, w2)
  y = ReduceMax<axes = [1], keepdims = 0>(f)
}
"""
_SHAPES = ((96, 80), (80, 72), (72, 64))

# C code after the right kernel: it may use `result`, the buffer of the kernel's first result.
FAULTS = {
    "writes beyond its buffers": "for (long n = 0; n < 1L << 26; n++) result[n] = 7;",
    "loops": "for (;;) if (*(volatile char *)result == 3) *(volatile char *)result = 4;",
    "sums wrongly": "*(volatile float *)result += 100;",
    "takes 20 GB": "volatile char *more = malloc(20L << 30);"
    " for (long n = 0; n < 20L << 30; n += 4096) more[n] = 1;",
    "reads at address 8": "*(volatile int *)8 = 1;",
}
_WRAPPER = """
#include <stdlib.h>
void {right}(void **, const long *, long, long, void *);
void {name}(void **buffers, const long *ints, long begin, long end, void *scratch) {{
    {right}(buffers, ints, begin, end, scratch);
    volatile unsigned char *result = buffers[{result}];
    {fault}
}}
"""


class Faulty:
    """Compiles trials; the code of the choices in `faults` does harm."""

    def __init__(
        self, compiler: TrialCompiler, faults: Mapping[tuple[str, str], str], folder: Path
    ) -> None:
        self.compiler, self.faults, self.folder = compiler, faults, folder
        self.spaces: dict[str, Any] = {k.site: k.space for k in compiler.kernels}
        self._harm: dict[str, str] = {}
        code, self.planner = compiler._analytic.code, compiler._analytic.planner
        assert isinstance(self.planner, CoreChooser)
        self._generate = code.generate
        code.generate = self.generate  # type: ignore[method-assign]

    def compile_trial(self, choices: Mapping[str, str], output: Path) -> Trial:
        harm = {c: self.faults[c] for c in choices.items() if c in self.faults}
        self._harm = {chosen_site: fault for (chosen_site, _), fault in harm.items()}
        return self.compiler.compile_trial(choices, output)

    def generate(
        self, lowered: Lowered, names: Sequence[str], trace: Trace | None = None
    ) -> Generated:
        generated = self._generate(lowered, names, trace)
        objects = [*generated.objects]
        for name, bound in zip(names, lowered.table.bounds, strict=True):
            digest = site(self.planner.kind, *self.planner.keys[bound]).digest
            if digest in self._harm:
                objects = [self.renamed(data, name) for data in objects]
                objects.append(self.wrapper(name, bound.kernel.results[0], self._harm[digest]))
        return replace(generated, objects=tuple(objects))

    def renamed(self, data: bytes, name: str) -> bytes:
        path = self.folder / "kernel.o"
        path.write_bytes(data)
        subprocess.run(["objcopy", f"--redefine-sym={name}={name}_right", path], check=True)
        return path.read_bytes()

    def wrapper(self, name: str, result: int, fault: str) -> bytes:
        source, path = self.folder / "wrapper.c", self.folder / "wrapper.o"
        text = _WRAPPER.format(name=name, right=f"{name}_right", result=result, fault=fault)
        source.write_text(text)
        subprocess.run(["cc", "-O1", "-fPIC", "-c", source, "-o", path], check=True)
        return path.read_bytes()


class PricedRunner(TrialRunner):
    """Really checks trials; a kernel takes the seconds of its price, and the clock is simulated."""

    world: Faulty
    now = 0.0

    def clock(self) -> float:
        return self.now

    def peak(self) -> float:
        return 1e9

    def turn(self, trial: Trial, seconds: float) -> Turn:
        self.now += 1 + seconds
        choices = {k.site: k.analytic for k in self.world.compiler.kernels}
        choices.update(trial.choices)
        steps = tuple(
            float(self.world.spaces[s].price_of(choices[s])) if s else 0.0 for s in trial.steps
        )
        return Turn(sum(steps), steps)


def inputs(_: Path) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).standard_normal((40, 96)).astype(np.float32)}


def swept(world: Faulty, folder: Path, lines: list[str]) -> list[Measurement]:
    """Returns the measurements of a sweep with the choices of `world`."""
    with (
        peak_program(folder, 1) as peaks,
        PricedRunner(folder, inputs, 2, 1e-4, 6, peaks) as runner,
    ):
        assert isinstance(runner, PricedRunner)
        runner.world = world
        sweep = Sweep(
            world.compiler.kernels, world.compiler.home, world.compile_trial, runner, folder,
            Effort(60.0, search=2, confirm=10), say=lines.append, progress=lambda line: None,
            clock=runner.clock,
        )  # fmt: skip
        return [*sweep.measurements()]


def lock_of(measurements: Sequence[Measurement], compiler: TrialCompiler) -> str:
    home = compiler.home
    verdicts = decide(measurements, home)
    return lock_text(Lock().with_measured((home, e) for e in verdicts.entries))


@pytest.fixture
def compiler(tmp_path: Path) -> TrialCompiler:
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(5)
    for number, shape in enumerate(_SHAPES):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, f"w{number}"))
    onnx.save(proto, tmp_path / "m.onnx")
    return TrialCompiler(tmp_path / "m.onnx", read_options({"cpu": "x86-64-v3"}))


def slower(compiler: TrialCompiler) -> list[tuple[str, str]]:
    """Returns the first candidates that a sweep tries for each kernel, if they are priced above the
    analytic choice: they never win, so that a sweep without them has the same winners."""
    slower_kernels = []
    for kernel in compiler.kernels:
        space: Any = kernel.space
        limit = space.price_of(kernel.analytic)
        neighbours = sorted(space.near(kernel.analytic), key=lambda c: (c.price, c.text))
        slower_kernels += [(kernel.site, c.text) for c in neighbours[:4] if c.price > 1.01 * limit]
    return slower_kernels


def test_five_faults_of_one_sweep_are_named_and_change_no_verdict(
    compiler: TrialCompiler, tmp_path: Path
) -> None:
    candidates = slower(compiler)
    assert len({chosen_site for chosen_site, _ in candidates}) >= 2
    assert len(candidates) >= len(FAULTS)
    faults = dict(zip(candidates, FAULTS.values(), strict=False))
    lines: list[str] = []
    measurements = swept(Faulty(compiler, faults, tmp_path), tmp_path, lines)
    named = {(m.site, m.candidate): m for m in measurements if m.outcome != TIMED and m.candidate}
    assert named.keys() == faults.keys()
    outcomes = [named[choice].outcome for choice in faults]
    assert outcomes[1:3] == ["hung", "wrong"]
    assert {outcomes[0], *outcomes[3:]} <= {"crashed", "wrong"}
    right = swept(Faulty(compiler, {}, tmp_path), tmp_path, [])
    assert {m.outcome for m in right if m.candidate} == {TIMED}
    assert lock_of(measurements, compiler) == lock_of(right, compiler)
