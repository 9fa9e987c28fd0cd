"""Tests that execute small models from their artifacts' AMD machine code, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform

from tests.lib.emulator.amd.code import Kernel
from tests.lib.emulator.amd.decode import FORMATS, Instruction, formats, instructions
from tests.lib.emulator.amd.engine import AmdEngine
from tests.lib.emulator.artifacts import Made, assert_runs, compiled
from tests.lib.emulator.device import Device
from tests.lib.emulator.faults import Fault
from tests.lib.emulator.models import MODELS, Small
from tests.lib.fake_gpu.fakes import Fakes, in_child
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.part import part, takes_all

Array = np.ndarray[Any, np.dtype[Any]]
pytestmark = NEEDS_TRITON
DEVICES = {"gfx1100": "gfx1100", "gfx942": "gfx942:sramecc+:xnack-"}
# The tests of mistakes share the compiled attention.
ATTENTION = pytest.mark.xdist_group("amd-attention")
# Each device runs half of the chosen models in turn, and attention; with `--whole` both run all.
CASES = [
    pytest.param(arch, name, marks=ATTENTION if name == "attention" else (), id=f"{arch}-{name}")
    for number, name in enumerate(sorted({*part("models for AMD", MODELS, 2), "attention"}))
    for turn, arch in enumerate(DEVICES)
    if takes_all() or number % len(DEVICES) == turn or name == "attention"
]
_NOTHING = (0xBF800000).to_bytes(4, "little")  # The instruction s_nop 0.


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for arch in FORMATS.values():
        formats(arch)  # Loading the formats here spares every child the work.
    return Fakes(tmp_path_factory.mktemp("driver")).driver(Platform.HIP)


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Returns a function that compiles attention at its first use."""

    @cache
    def of(arch: str) -> Made:
        return compiled(
            MODELS["attention"](), f"rocm:{arch}", tmp_path_factory.mktemp("a") / "m.so"
        )

    return of


def agrees(
    made: Made, arch: str, driver: Path, engine: AmdEngine, seeds: Sequence[int | None]
) -> None:
    device = Device(driver, Platform.HIP, engine)
    device.configure(DEVICES[arch], shared=65536)
    assert_runs(made, device, seeds)
    assert engine.archs == {arch}


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_model_agrees(
    arch: str, name: str, driver: Path, tmp_path: Path, attention: Callable[[str], Made]
) -> None:
    """A model agrees with waves side by side, and with each wave alone if waves share memory.

    Parameters are in memory and in registers, if the kernel supports both.
    """
    if name == "attention":
        made = attention(arch)
    else:
        made = compiled(MODELS[name](), f"rocm:{arch}", tmp_path / "m.so")
    shares = any("s_barrier" in each.assembly for each in made.kernels)

    def run() -> None:
        seeds = (None, 1) if shares or arch == "gfx942" else (None, None)
        agrees(made, arch, driver, AmdEngine(), seeds)

    in_child(run)


def test_products_are_exact_where_there_are_no_units_of_tf32(tmp_path: Path) -> None:
    """Matmuls are exact on GPUs without TF32 units: RDNA3 and the MI200 have the code of f32."""
    target = "rocm:gfx1100,gfx90a,gfx942"
    texts = []
    for precision in ("tf32", "f32"):
        small = replace(MODELS["product of tf32"](), precision=precision)
        made = compiled(small, target, tmp_path / f"{precision}.so")
        texts.append({(k.arch, k.assembly) for k in made.kernels})
    assert {arch for arch, _ in texts[0] ^ texts[1]} == {"gfx942"}


# ---- numbers at the edge ------------------------------------------------------------------------


def unary(operator: str, values: Array) -> Small:
    size = len(values)
    return Small(f"(float[{size}] x) => (float[{size}] y) {{ y = {operator}(x) }}", {"x": values})


@pytest.mark.parametrize("arch", DEVICES)
def test_exp_of_denormal_results(arch: str, driver: Path, tmp_path: Path) -> None:
    """Exp keeps denormal results, which `v_exp_f32` alone flushes to zero."""
    x = np.linspace(-103.5, -87.4, 256, dtype=np.float32)
    want = np.exp(x.astype(np.float64))
    assert ((want > 0) & (want < 2.0**-126)).sum() > 200
    made = compiled(unary("Exp", x), f"rocm:{arch}", tmp_path / "m.so")
    assert any("v_exp_f32" in each.assembly for each in made.kernels)
    in_child(lambda: results_near(made, arch, driver, want, 2.0**-148))


DENORMALS = 2.0 ** np.linspace(-148.9, -126.1, 200)
FUNCTIONS = {
    "Sqrt": (DENORMALS, np.sqrt),
    "Log": (DENORMALS, np.log),
    "Reciprocal": (2.0 ** np.linspace(126.1, 127.9, 200), np.reciprocal),
}


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_functions_at_denormals(arch: str, operator: str, driver: Path, tmp_path: Path) -> None:
    """Functions of denormals are accurate to four units; the instructions alone flush denormals."""
    values, function = FUNCTIONS[operator]
    x = values.astype(np.float32)
    want = function(x.astype(np.float64))
    within = 4 * np.maximum(np.abs(want) * 2.0**-24, 2.0**-149)
    made = compiled(unary(operator, x), f"rocm:{arch}", tmp_path / "m.so")
    in_child(lambda: results_near(made, arch, driver, want, within))


def results_near(made: Made, arch: str, driver: Path, want: Array, within: Any) -> None:
    import tcc

    device = Device(driver, Platform.HIP, AmdEngine())
    device.configure(DEVICES[arch], shared=65536)
    with device.blamed():
        got = tcc.load(made.path).run(dict(made.small.inputs))
    found = np.asarray(got["y"]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = (np.abs(found - want) <= within) | (found == want)
    right |= np.isnan(found) & np.isnan(want)
    wrong = [(x[~right], found[~right], want[~right]) for x in made.small.inputs.values()]
    assert right.all(), wrong


@pytest.mark.parametrize("arch", DEVICES)
def test_quotients_are_the_nearest(arch: str, driver: Path, tmp_path: Path) -> None:
    """Quotients of all magnitudes are correctly rounded, although both operands are scaled."""
    rng = np.random.default_rng(5)
    shape = (2, 600)
    numbers = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-140, 127, shape)
    special = np.array([0, np.inf, 1, 2.0**-149, 3.4e38, -0.0, 2.0**127, -5], np.float64)
    x, y = np.concatenate([numbers, np.stack([special, special[::-1]])], 1).astype(np.float32)
    small = Small(
        f"(float[{len(x)}] x, float[{len(x)}] z) => (float[{len(x)}] y) {{ y = Div(x, z) }}",
        {"x": x, "z": y},
    )
    made = compiled(small, f"rocm:{arch}", tmp_path / "m.so")
    assert any("v_div_scale_f32" in each.assembly for each in made.kernels)
    with np.errstate(all="ignore"):
        want = (x / y).astype(np.float64)
    in_child(lambda: results_near(made, arch, driver, want, 0))


# ---- mistakes in real kernels -------------------------------------------------------------------


def without(found: Callable[[Instruction], bool]) -> Callable[[Kernel], Kernel]:
    """Returns an edit that replaces matching instructions of one word by s_nop."""

    def edit(kernel: Kernel) -> Kernel:
        image = bytearray(kernel.image)
        for i in instructions(kernel.image, kernel.entry, kernel.arch):
            if found(i):
                assert i.size == 4
                image[i.at : i.at + 4] = _NOTHING
        return replace(kernel, image=bytes(image))

    return edit


def counter_of_shared(i: Instruction) -> bool:
    """Returns true for a wait for shared memory and scalars."""
    return i.name == "s_waitcnt" and i.get("simm16") in (0xFC07, 0xC07F)


def counter_of_loads(i: Instruction) -> bool:
    return i.name == "s_waitcnt" and i.get("simm16") in (0x03F7, 0x0F70)


MISTAKES = {
    "no barriers": (lambda i: i.name == "s_barrier", "a race|nobody wrote it|is read and was"),
    "no waits for shared memory": (counter_of_shared, "before the load|no s_waitcnt"),
    "no waits for loads": (counter_of_loads, "is used before the load that writes it"),
}  # fmt: skip


@ATTENTION
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(
    arch: str, mistake: str, driver: Path, attention: Callable[[str], Made]
) -> None:
    """A planted mistake is found in kernels that are right without it."""
    chosen, words = MISTAKES[mistake]
    made = attention(arch)

    def run() -> None:
        with pytest.raises(Fault, match=words):
            agrees(made, arch, driver, AmdEngine(edit=without(chosen)), (None,))

    in_child(run)
