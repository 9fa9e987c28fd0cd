"""Hand-written programs for the kernels of fake_kernels.c."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from programs import Builder
from tcc.backends.artifact.gpu_binaries import (
    BinaryKind,
    GpuImages,
    GpuKernel,
    GpuVariant,
    Param,
    Platform,
)
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.variant import Variant
from tcc.backends.artifact.weight_section import BytesLike
from tcc.ir.program import (
    Alias,
    Arena,
    Branch,
    BufferId,
    CallOp,
    Check,
    Copy,
    Dynamic,
    Input,
    IntOp,
    Launch,
    Loop,
    Program,
    ReadInt,
    Register,
    Relation,
    State,
    TensorRef,
    View,
    Weight,
)
from tcc.ir.types import DTYPES

# Each kernel has a number of pointers and of integers.
KERNELS = {
    "relu": (2, 1), "add": (3, 1), "accumulate": (3, 0), "positive": (2, 0), "fill": (1, 2),
    "count": (2, 0),
}  # fmt: skip
BLOCK = 8


@dataclass
class GpuBuilder(Builder):
    """A program builder whose launches have blocks of eight elements."""

    def blocks(self, n: Register) -> Register:
        return self.let(IntOp.FLOORDIV, self.let(IntOp.ADD, n, self.const(7)), self.const(BLOCK))

    def launch(
        self,
        kernel: str,
        grid: Register,
        buffers: Sequence[BufferId],
        ints: Sequence[Register] = (),
        least: Register = -1,
    ) -> None:
        number = list(KERNELS).index(kernel)
        self.body.append(Launch(number, grid, tuple(buffers), tuple(ints), least))

    def program(self) -> Program:
        return replace(super().program(), kernels=tuple(KERNELS))


def params(pointers: int, ints: int) -> tuple[Param, ...]:
    return (Param.POINTER,) * pointers + (Param.INT64,) * ints + (Param.NULL,) * 2


def variant(
    kernels: Path, arch: str = "sm_90", form: BinaryKind = BinaryKind.CUBIN, shared: int = 64 << 10
) -> GpuVariant:
    """Returns all kernels for `arch`; "add" uses `shared` bytes of shared memory, the others 1
    KiB."""
    image = f"FAKE:{kernels}".encode() + b"\0"
    return GpuVariant(
        arch,
        form,
        tuple(
            GpuKernel(
                name, image, shared if name == "add" else 1024, 4, 32, params(*counts), (), False
            )
            for name, counts in KERNELS.items()
        ),
    )


def images(kernels: Path, platform: Platform, *, allow_host: bool = False) -> GpuImages:
    if platform is Platform.HIP:
        return GpuImages(platform, (variant(kernels, "gfx942", BinaryKind.HSACO),), allow_host)
    return GpuImages(platform, (variant(kernels),), allow_host)


def link(program: Program, gpu: GpuImages, out: Path, weights: Sequence[BytesLike] = ()) -> Any:
    return link_artifact([gpu_variant(program, gpu, weights)], {"tcc": "test"}, "mini", out)


def gpu_variant(program: Program, gpu: GpuImages, weights: Sequence[BytesLike] = ()) -> Variant:
    """Returns the program with its GPU kernels as a variant of an artifact."""
    return Variant(gpu.platform.name.lower(), program, weights, gpu=gpu)


WEIGHTS = np.arange(1, 65, dtype=np.float32)


def mlp() -> Program:
    """Returns the program y = relu(x) + w for x: f32[n] with n <= 64, and weights 1, 2, ..., 64."""
    b = GpuBuilder()
    n = b.let(IntOp.DIM, 0, 0)
    most, four, zero = b.const(64), b.const(4), b.const(0)
    b.body.append(Check(Relation.LE, n, most, "input 'x': n is at most 64"))
    size = b.let(IntOp.MUL, n, four)
    grid = b.blocks(n)
    b.arena = size
    b.input("x", "f32", [n], "[n]")
    x, w = b.buffer(Input(0), "x"), b.buffer(Weight(0, 256), "w")
    middle, y = b.buffer(Arena(zero, size)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.launch("relu", grid, [x, middle], [n])
    b.launch("add", grid, [middle, w, y], [n])
    return b.program()


def roomy() -> Program:
    """Returns the program x += x for a state x: f32[2,n] in an array f32[2,capacity].

    It adds the whole array.
    """
    b = GpuBuilder()
    n, capacity = b.let(IntOp.DIM, 0, 1), b.let(IntOp.CAPACITY, 0, 1)
    two, eight = b.const(2), b.const(8)
    count = b.let(IntOp.MUL, capacity, two)
    b.input("x", "f32", [two, n], "[2,n]")
    x = b.buffer(Input(0))
    updated = b.output("x_out", "f32", [two, n], "[2,n]", state=0)
    b.allocate(updated, b.let(IntOp.MUL, n, eight))
    b.launch("add", b.blocks(count), [x, x, updated], [count])
    return b.program()


def in_place() -> Program:
    """Returns a program that updates its input and a state in place.

    It computes x += x for x: f32[n], total += x[0] and y = total.
    """
    b = GpuBuilder()
    n, one = b.let(IntOp.DIM, 0, 0), b.const(1)
    four = b.const(4)
    size, grid = b.let(IntOp.MUL, n, four), b.blocks(n)
    b.input("x", "f32", [n], "[n]")
    x, total = b.buffer(Input(0)), b.buffer(State(4))
    updated, y = b.output("x_out", "f32", [n], "[n]", state=0), b.output("y", "f32", [one], "[1]")
    b.allocate(updated, size)
    b.allocate(y, four)
    b.launch("add", grid, [x, x, updated], [n])
    b.launch("accumulate", one, [x, total, y])
    return b.program()


def growing() -> Program:
    """Returns a program whose output size comes from the device.

    With n = int(x[0]), y: f32[2n] is n times n, then n times 7.
    """
    b = GpuBuilder()
    one, eight, seven = b.const(1), b.const(8), b.const(7)
    b.input("x", "f32", [one], "[1]")
    x, counted = b.buffer(Input(0)), b.buffer(Dynamic())
    rows, behind = b.buffer(Dynamic()), b.buffer(Alias())
    n = b.register()
    b.allocate(counted, eight)
    b.launch("count", one, [x, counted])
    b.body.append(ReadInt(n, counted, DTYPES["i64"], 0))
    size, grid = b.let(IntOp.MUL, n, b.const(4)), b.blocks(n)
    double, total = b.let(IntOp.ADD, n, n), b.let(IntOp.ADD, size, size)
    y = b.output("y", "f32", [double], "[2*count]")
    b.allocate(rows, size)
    b.launch("fill", grid, [rows], [n, n])
    b.allocate(rows, total, keep=True)
    b.body.append(View(behind, rows, size))
    b.launch("fill", grid, [behind], [seven, n])
    b.allocate(y, total)
    b.body.append(Copy(y, rows, total))
    return b.program()


def looping() -> Program:
    """Returns the program y = x * 2**k, as a loop, for x: f32[n] and k: i64 on the host."""
    b = GpuBuilder()
    n, k, counter = b.let(IntOp.DIM, 0, 0), b.register(), b.register()
    size, grid, zero = b.let(IntOp.MUL, n, b.const(4)), b.blocks(n), b.const(0)
    b.arena = size
    b.input("x", "f32", [n], "[n]")
    b.input("k", "i64", [], "[]")
    x, count = b.buffer(Input(0)), b.buffer(Input(1))
    b.body.append(ReadInt(k, count, DTYPES["i64"], 0))
    memory, y = b.buffer(Arena(zero, size)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.body.append(Copy(memory, x, size))
    outer, b.body = b.body, []
    b.launch("add", grid, [memory, memory, memory], [n])
    inner, b.body = b.body, outer
    b.body += [Loop(k, -1, counter, tuple(inner)), Copy(y, memory, size)]
    return b.program()


def until() -> Program:
    """Returns a program that adds step to x while y[0] > 0, at most ten times; x and step:
    f32[n]."""
    b = GpuBuilder()
    n, one, ten, counter = b.let(IntOp.DIM, 0, 0), b.const(1), b.const(10), b.register()
    size, grid, zero = b.let(IntOp.MUL, n, b.const(4)), b.blocks(n), b.const(0)
    b.arena = b.let(IntOp.ADD, size, b.const(256))
    b.input("x", "f32", [n], "[n]")
    b.input("step", "f32", [n], "[n]")
    x, step = b.buffer(Input(0)), b.buffer(Input(1))
    flag, y = b.buffer(Arena(zero, one)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.body.append(Copy(y, x, size))
    b.launch("positive", one, [y, flag])
    outer, b.body = b.body, []
    b.launch("add", grid, [y, step, y], [n])
    b.launch("positive", one, [y, flag])
    inner, b.body = tuple(b.body), outer
    b.body.append(Loop(ten, flag, counter, inner))
    return b.program()


def square() -> Program:
    """Returns a program whose y: f32[n * n] is n times 7, with n = int(x[0]), which it reads
    twice."""
    b = GpuBuilder()
    one, eight, seven = b.const(1), b.const(8), b.const(7)
    b.input("x", "f32", [one], "[1]")
    x, counted = b.buffer(Input(0)), b.buffer(Dynamic())
    rows, columns = b.register(), b.register()
    b.allocate(counted, eight)
    b.launch("count", one, [x, counted])
    b.body += [ReadInt(r, counted, DTYPES["i64"], 0) for r in (rows, columns)]
    count = b.let(IntOp.MUL, rows, columns)
    y = b.output("y", "f32", [count], "[count]")
    b.allocate(y, b.let(IntOp.MUL, count, b.const(4)))
    b.launch("fill", b.blocks(count), [y], [seven, count])
    return b.program()


def seeded() -> Program:
    """Returns a program whose y: f32[1] is the run's seed, which the body reads behind a launch."""
    b = GpuBuilder()
    one, four = b.const(1), b.const(4)
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("fill", one, [y], [one, one])
    b.launch("fill", one, [y], [b.let(IntOp.SEED), one])
    return b.program()


def sorting() -> Program:
    """Returns a program that computes the three largest of x: f32[n] by a function of the host."""
    b = GpuBuilder()
    n, three = b.let(IntOp.DIM, 0, 0), b.const(3)
    b.input("x", "f32", [n], "[n]")
    x = b.buffer(Input(0))
    values, indices = b.output("y", "f32", [three], "[3]"), b.output("i", "i64", [three], "[3]")
    b.allocate(values, b.const(12))
    b.allocate(indices, b.const(24))
    f32, i64 = DTYPES["f32"], DTYPES["i64"]
    b.body.append(
        CallOp(
            "top_k",
            (TensorRef(x, f32, (n,)),),
            (TensorRef(values, f32, (three,)), TensorRef(indices, i64, (three,))),
            (0, 1, 1),
        )
    )
    return b.program()


# The pool of n-grams, the start of each size's n-grams, and the column of each n-gram.
GRAMS = np.array([2, 3, 5, 4, 0, 2, 0, 1, 2], np.int64)


def counting() -> Program:
    """Returns a program that counts the n-grams (2), (3) and (5, 4) of x: i64[n].

    A function of the host counts them, with temporaries.
    """
    b = GpuBuilder()
    n, two, three, four = b.let(IntOp.DIM, 0, 0), b.const(2), b.const(3), b.const(4)
    b.input("x", "i64", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [three], "[3]")
    b.allocate(y, b.const(12))
    i64, f32 = DTYPES["i64"], DTYPES["f32"]
    places = ((Weight(0, 32), four), (Weight(32, 16), two), (Weight(48, 24), three))
    tables = [TensorRef(b.buffer(place), i64, (size,)) for place, size in places]
    weights = TensorRef(b.buffer(Weight(0, 0)), f32, (b.const(0),))
    inputs = (TensorRef(x, i64, (n,)), *tables, weights)
    b.body.append(CallOp("tf_idf", inputs, (TensorRef(y, f32, (three,)),), (0, 1, 2, 0)))
    return b.program()


def branching() -> Program:
    """Returns the program y = x + x if x[0] > 0, else relu(x), for x: f32[n]."""
    b = GpuBuilder()
    n, one = b.let(IntOp.DIM, 0, 0), b.const(1)
    size, grid, zero = b.let(IntOp.MUL, n, b.const(4)), b.blocks(n), b.const(0)
    b.arena = one
    b.input("x", "f32", [n], "[n]")
    x, flag, y = b.buffer(Input(0)), b.buffer(Arena(zero, one)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.launch("positive", one, [x, flag])
    outer, b.body = b.body, []
    b.launch("add", grid, [x, x, y], [n])
    then, b.body = tuple(b.body), []
    b.launch("relu", grid, [x, y], [n])
    otherwise, b.body = tuple(b.body), outer
    b.body.append(Branch(flag, then, otherwise))
    return b.program()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp,
    "in_place": in_place,
    "roomy": roomy,
    "growing": growing,
    "looping": looping,
    "until": until,
    "square": square,
    "seeded": seeded,
    "sorting": sorting,
    "counting": counting,
    "branching": branching,
}

_WEIGHTS: dict[str, np.ndarray[Any, Any]] = {"mlp": WEIGHTS, "counting": GRAMS}

Linker = Callable[[str, Platform], Path]


class Artifacts:
    """The programs above as artifacts; each is linked once per platform."""

    def __init__(self, folder: Path, kernels: Path) -> None:
        self._folder, self._kernels = folder, kernels

    def __call__(self, name: str, platform: Platform) -> Path:
        out = self._folder / platform.name / f"{name}.so"
        if not out.exists():
            host = name in ("sorting", "counting")
            weights = [_WEIGHTS[name]] if name in _WEIGHTS else []
            link(PROGRAMS[name](), images(self._kernels, platform, allow_host=host), out, weights)
        return out
