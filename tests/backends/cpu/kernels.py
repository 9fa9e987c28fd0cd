"""Parts of hand-written kernels: buffers, arrays, copies."""

from __future__ import annotations

import numpy as np
from tcc.backends.cpu.detect import detect
from tcc.ir.index import Index, Var, const, iterator, var_of
from tcc.ir.tile import (
    Block,
    Load,
    MemorySpace,
    Store,
    TileBuffer,
    TileKernel,
)
from tcc.ir.types import DType
from tcc.target import parse_target

from tests.draws import RNG

SERVER = parse_target("cpu", "icelake-server", detect)


def buffer(
    name: str, dtype: DType, sizes: tuple, scope: MemorySpace = MemorySpace.INPUT
) -> TileBuffer:
    return TileBuffer(
        name, dtype, tuple(s if isinstance(s, Index) else const(s) for s in sizes), scope
    )


def output(name: str, dtype: DType, *sizes: int | Index) -> TileBuffer:
    return buffer(name, dtype, sizes, MemorySpace.OUTPUT)


def var(index: Index) -> Var:
    variable = var_of(index)
    assert variable is not None
    return variable


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def copy_kernel(
    source, target, shape, read, write, guards=(), write_guards=(), fill=0, sizes=(), axes=()
) -> TileKernel:
    block = Block("x", source.dtype, shape)
    body = (
        Load(block, source, read, guards, fill),
        Store(target, write, block, write_guards),
    )
    return TileKernel((source, target), (), sizes, axes or (var(iterator("u", 1)),), body)


def check_all(check, parts) -> None:
    """Checks several kernels of one unit as one kernel."""
    kernels = [kernel for kernel, _ in parts]
    together = TileKernel(
        tuple(b for k in kernels for b in k.buffers),
        (),
        (),
        (var(iterator("u", 1)),),
        tuple(s for k in kernels for s in k.body),
    )
    check(together, [a for _, arrays in parts for a in arrays])
