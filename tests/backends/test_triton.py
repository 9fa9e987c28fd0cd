"""Tile programs are target-neutral: as Triton they compile for two vendors and compute the same."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from tcc.ir.evaluate_tile import evaluate_kernel
from tcc.ir.expr import Expr, extent
from tcc.ir.graph import GraphBuilder
from tcc.ir.group import TileGroup
from tcc.ir.index import as_int, const, iterator, var_of
from tcc.ir.scalar import apply, argument, literal
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Load,
    Loop,
    Reduce,
    Scope,
    Store,
    TileBuffer,
    TileKernel,
    lanes,
)
from tcc.ir.types import F32, tensor
from tcc.ir.verify_tile import verify_kernel
from tcc.ops import OPS
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.compose import canonical, compose, drop_unused, inline_pointwise
from tcc.passes.fuse.lower import lower
from tcc.schedule.schedule import Nest, Schedule

from tests.passes.fuse import tiles

from .triton_text import RefusedError, triton_text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
        reason="triton and torch are not installed (extras gpu and models)",
    ),
]


# ---- kernels -----------------------------------------------------------------------------------


def powers_of_two(group: TileGroup) -> Schedule:
    """Blocks as a GPU likes them: 16 to a side, rows of 32 along what a stage has of its own."""
    common = [v.name for v in group.common]
    contraction = any(len(s.iters) > 1 and s.reduce for s in group.stages)
    parts: list[list[int]] = []
    for number, stage in enumerate(group.stages):
        if parts and stage.monoid is None and set(stage.iters) == set(group.common):
            parts[-1].append(number)
        else:
            parts.append([number])
    nests = []
    for numbers in parts:
        stages = [group.stages[n] for n in numbers]
        loops = list(dict.fromkeys(v.name for s in stages for v in (*s.iters, *s.reduce)))
        own = [n for n in loops if n not in common]
        vector = common[-1] if contraction else next(iter(own), None)
        blocks = tuple((n, 16 if n in common else 32) for n in loops)
        nests.append(Nest(tuple(numbers), (), blocks, vector))
    return Schedule(tuple((n, 16) for n in common), tuple(common), tuple(nests))


def kernel_of(expr: Expr) -> TileKernel:
    built = tiles.build(expr, powers_of_two)
    assert built.unproved == ()
    return built.kernel


def softmax() -> TileKernel:
    """Without scratch, which Triton cannot address: the exponentials are computed twice."""
    b = GraphBuilder("softmax")
    x = b.input("x", tensor(F32, 32, 96))
    (y,) = b.add(OPS["softmax"], [x], AxisAttrs(1))
    whole, _ = compose(b.finish([y]).nodes, [y])
    return kernel_of(canonical(drop_unused(inline_pointwise(whole))[0]))


def gemm() -> TileKernel:
    """relu(a @ b + bias)"""
    b = GraphBuilder("gemm")
    x, w = b.input("x", tensor(F32, 48, 64)), b.input("w", tensor(F32, 64, 32))
    (sums,) = b.add(OPS["matmul"], [x, w])
    (biased,) = b.add(OPS["add"], [sums, b.input("bias", tensor(F32, 32))])
    (y,) = b.add(OPS["relu"], [biased])
    return kernel_of(compose(b.finish([y]).nodes, [y])[0])


def attention() -> TileKernel:
    """Online softmax: the largest score, the sum and the weighted sum are carried over the keys."""
    heads, length, width, block = 2, 48, 16, 16
    q, k, v = (
        TileBuffer(n, F32, tuple(map(const, (heads, length, width))), Scope.INPUT) for n in "qkv"
    )
    o = TileBuffer("o", F32, q.sizes, Scope.OUTPUT)
    h, i, j = iterator("h", heads), iterator("i", length // block), iterator("j", length)
    square, column = (block, block), (block, 1)
    l0, l1 = lanes(square)
    names = iter(f"v{n}" for n in range(99))

    def new(*shape: int) -> Block:
        return Block(next(names), F32, shape)

    rows, keys, values, start, scores = (new(*square) for _ in range(5))
    begin = [new(*column), new(*column), new(*square)]
    top, total, acc = [new(*column), new(*column), new(*square)]
    results = [new(*column), new(*column), new(*square)]
    largest, top2, shrink, sums, total2 = (new(*column) for _ in range(5))
    weights, faded, acc2, out = (new(*square) for _ in range(4))
    a0, a1 = argument(0, F32), argument(1, F32)
    body = (
        Load(keys, k, (h, j + l0, l1)),
        Load(values, v, (h, j + l0, l1)),
        Compute(start, literal(0.0, F32), ()),
        Contract(scores, start, rows, keys, ("i", "j"), ("i", "d"), ("j", "d")),
        Reduce((largest,), "max", (scores,), (1,)),
        Compute(top2, apply("max", a0, a1), (top, largest)),
        Compute(shrink, apply("exp", apply("sub", a0, a1)), (top, top2)),
        Compute(weights, apply("exp", apply("sub", a0, a1)), (scores, top2)),
        Reduce((sums,), "sum", (weights,), (1,)),
        Compute(
            total2, apply("add", apply("mul", a0, a1), argument(2, F32)), (total, shrink, sums)
        ),
        Compute(faded, apply("mul", a0, a1), (acc, shrink)),
        Contract(acc2, faded, weights, values, ("i", "d"), ("i", "j"), ("j", "d")),
    )
    (counter, head, row) = (var_of(x) for x in (j, h, i))
    assert counter is not None
    assert head is not None
    assert row is not None
    whole = (
        Load(rows, q, (h, i * block + l0, l1)),
        Compute(begin[0], literal(float("-inf"), F32), ()),
        Compute(begin[1], literal(0.0, F32), ()),
        Compute(begin[2], literal(0.0, F32), ()),
        Loop(
            counter, const(0), const(length), block, tuple(begin), (top, total, acc), body,
            (top2, total2, acc2), tuple(results),
        ),
        Compute(out, apply("div", a0, a1), (results[2], results[1])),
        Store(o, (h, i * block + l0, l1), out),
    )  # fmt: skip
    return TileKernel((q, k, v, o), (), (), (head, row), whole)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


KERNELS: MappingProxyType[str, tuple[Callable[[], TileKernel], Callable[..., np.ndarray]]] = (
    MappingProxyType(
        {
            "softmax": (softmax, lambda x: softmax_of(x.reshape(32, 96))),
            "gemm": (
                gemm,
                lambda x, w, c: np.maximum(x.reshape(48, 64) @ w.reshape(64, 32) + c, 0),
            ),
            "attention": (attention, lambda q, k, v: softmax_of(q @ k.swapaxes(1, 2)) @ v),
        }
    )
)


# ---- tests -------------------------------------------------------------------------------------


def triton_run(*arguments: str, **environment: str) -> str:
    script = Path(__file__).parent / "triton_run.py"
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def written(kernel: TileKernel, name: str, folder: Path) -> Path:
    path = folder / f"{name}.py"
    path.write_text(triton_text(kernel, name))
    return path


def arrays_of(kernel: TileKernel) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    found = []
    for buffer in kernel.buffers:
        shape = [as_int(n) or 0 for n in buffer.sizes]
        random = rng.standard_normal(shape).astype(np.float32)
        found.append(random if buffer.scope is Scope.INPUT else np.full_like(random, np.nan))
    return found


def units(kernel: TileKernel) -> int:
    return prod(as_int(extent(v)) or 0 for v in kernel.axes)


def evaluated(kernel: TileKernel, arrays: Sequence[np.ndarray]) -> np.ndarray:
    copies = [a.copy() for a in arrays]
    evaluate_kernel(kernel, copies, {})
    return copies[-1]


@pytest.mark.parametrize("name", list(KERNELS))
def test_triton_computes_what_the_tile_program_does(name: str, tmp_path: Path) -> None:
    make, meaning = KERNELS[name]
    kernel = make()
    assert verify_kernel(kernel) == ()
    arrays = arrays_of(kernel)
    expected = evaluated(kernel, arrays)
    np.testing.assert_allclose(expected.ravel(), meaning(*arrays[:-1]).ravel(), 2e-5, 2e-5)
    file = tmp_path / "arrays.npz"
    names = [b.name for b in kernel.buffers]
    np.savez(file, **dict(zip(names, arrays, strict=True)))
    path = written(kernel, name, tmp_path)
    triton_run("interpret", str(path), name, str(file), str(units(kernel)), TRITON_INTERPRET="1")
    with np.load(file) as results:
        np.testing.assert_allclose(results[names[-1]], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", list(KERNELS))
def test_triton_compiles_for_both_vendors(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name][0]()
    path = written(kernel, name, tmp_path)
    parameters = ",".join(b.name for b in kernel.buffers)
    cache = str(tmp_path / "cache")
    made = triton_run("compile", str(path), name, parameters, TRITON_CACHE_DIR=cache)
    assert [line.split()[0] for line in made.splitlines()] == ["ptx", "amdgcn"]
    assert all(int(line.split()[1]) > 1000 for line in made.splitlines())


def test_an_axis_that_is_no_power_of_two_is_refused() -> None:
    b = GraphBuilder("odd")
    x = b.input("x", tensor(F32, 7, 5))
    (y,) = b.add(OPS["relu"], [x])
    group = tiles.build(compose(b.finish([y]).nodes, [y])[0]).group
    (only,) = group.common
    nest = Nest((0,), (), ((only.name, 5),), only.name)
    odd = Schedule(((only.name, 5),), (only.name,), (nest,))
    with pytest.raises(RefusedError, match="an axis of 5"):
        triton_text(lower(group, odd), "odd")
