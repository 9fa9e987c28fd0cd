"""Twenty small expressions as kernels, and planners for several targets."""

from __future__ import annotations

from dataclasses import replace

from tcc.backends.gpu.backend import block_profile
from tcc.backends.gpu.source import HOPPER
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import StageRef, apply
from tcc.ir.index import IndexLike, const, symbol
from tcc.ir.layout import permuted, row_major
from tcc.ir.types import BF16, F32, DType, TensorType, tensor
from tcc.ops import OPS
from tcc.ops.composite.attention import AttentionAttrs
from tcc.passes.fuse.compose import drop_unused
from tcc.passes.fuse.structure import Storage
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.passes.tile.gpu.split_k import split_k
from tcc.passes.tile.plan import KernelKey
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import machine_for
from tcc.target import parse_target

CPUS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "generic", "neoverse-n1", "neoverse-v1")
GPUS = ("cuda:sm_80", "cuda:sm_90", "rocm:gfx942", "rocm:gfx1100")
Planner = CoreChooser | BlockChooser


def cpu_planner(cpu: str, ledger: Ledger = SILENT) -> CoreChooser:
    """Returns a planner with prices for a processor, as the backend creates it."""
    profile = parse_target("cpu" if cpu.startswith("x86") else "cpu:aarch64", cpu, _never).profile
    machine = machine_for(profile)
    core = CoreModel(machine.lanes, machine.registers, machine.l2.size, limits=machine.limits)
    return CoreChooser(core, Pricer(machine), ledger)


def gpu_planner(text: str, ledger: Ledger = SILENT) -> BlockChooser:
    """Returns a planner for a GPU, whose kernels give warps roles if the GPU is a Hopper."""
    target = parse_target(text, "host", _never)
    profile = replace(block_profile(target.gpus, "f32"), warpgroups=target.archs == (HOPPER,))
    return BlockChooser(profile, ledger=ledger)


def planner_of(target: str, ledger: Ledger = SILENT) -> Planner:
    return gpu_planner(target, ledger) if ":" in target else cpu_planner(target, ledger)


def _never() -> None:
    raise AssertionError("a test names its processor")


# ---- expressions --------------------------------------------------------------------------------


def key(
    expr: Expr, constants: tuple[int, ...] = (), order: tuple[int, ...] | None = None
) -> KernelKey:
    """Returns the key of a kernel whose operands are row-major, except the first if `order` is
    given."""

    def storage(number: int, type_: TensorType) -> Storage:
        layout = row_major(type_.shape)
        if number == 0 and order is not None:
            layout = permuted(type_.shape, order)
        return Storage(type_.dtype, type_.shape, layout, number in constants)

    operands = tuple(storage(n, t) for n, t in enumerate(expr.params) if t is not None)
    return expr, operands, tuple(Storage(t.dtype, t.shape, row_major(t.shape)) for t in expr.types)


def matmul(m: IndexLike, n: IndexLike, k: IndexLike, after: str = "", dtype: DType = F32) -> Expr:
    """Returns a matmul, with the function `after` applied to each element."""
    b = ExprBuilder(tensor(dtype, m, k), tensor(dtype, k, n))
    i, j = b.iters(m, n)
    (c,) = b.iters(k)
    lhs, right = b.read(0, i, c), b.read(1, c, j)
    result = b.stage((i, j), apply("mul", lhs, right), over=(c,), monoid="sum")
    if after:
        p, q = b.iters(m, n)
        b.stage((p, q), apply(after, b.read(result, p, q)))
    return b.done()


def summed(m: IndexLike, n: IndexLike, *, columns: bool = False) -> Expr:
    b = ExprBuilder(tensor(F32, n, m) if columns else tensor(F32, m, n))
    (i,) = b.iters(m)
    (j,) = b.iters(n)
    b.stage((i,), b.read(0, *((j, i) if columns else (i, j))), over=(j,), monoid="sum")
    return b.done()


def pointwise(m: IndexLike, n: IndexLike, *, transposed: bool = False) -> Expr:
    b = ExprBuilder(tensor(F32, n, m) if transposed else tensor(F32, m, n))
    i, j = b.iters(m, n)
    b.stage((i, j), apply("exp", b.read(0, *((j, i) if transposed else (i, j)))))
    return b.done()


def softmax(m: IndexLike, n: IndexLike) -> Expr:
    """Returns the rows of a matrix, exponentiated and divided by their sums."""
    b = ExprBuilder(tensor(F32, m, n))
    i, j = b.iters(m, n)
    powers = b.stage((i, j), apply("exp", b.read(0, i, j)))
    (p,) = b.iters(m)
    (q,) = b.iters(n)
    sums = b.stage((p,), b.read(powers, p, q), over=(q,), monoid="sum")
    r, s = b.iters(m, n)
    b.stage((r, s), apply("div", b.read(powers, r, s), b.read(sums, r)))
    return b.done()


def conv(channels: int, filters: int, side: int, window: int) -> Expr:
    b = ExprBuilder(
        tensor(F32, 1, channels, side, side), tensor(F32, filters, channels, window, window)
    )
    inner = side - window + 1
    f, y, x = b.iters(filters, inner, inner)
    c, u, v = b.iters(channels, window, window)
    product = apply("mul", b.read(0, 0, c, y + u, x + v), b.read(1, f, c, u, v))
    b.stage((f, y, x), product, over=(c, u, v), monoid="sum")
    return b.done()


def attention(heads: int, rows: int, width: int) -> Expr:
    """Returns the attention of `heads` heads in bf16, which Hopper computes with warpgroups."""
    shape = tensor(BF16, 1, heads, rows, width)
    expr = OPS["attention"].expr
    assert expr is not None
    return expr((shape, shape, shape), AttentionAttrs(0.125, False, 0.0, const(0)))


def sums_of_parts(planner: BlockChooser) -> Expr:
    """Returns the first kernel of a long matmul whose sum is divided among tiles."""
    divided = split_k(matmul(16, 512, 8192), planner.profile, planner.best)
    assert divided is not None
    expr, number = divided
    parts, _ = drop_unused(replace(expr, outputs=(StageRef(number, 0),)))
    return canonical(parts)


def gpu_kernels(planner: BlockChooser) -> tuple[KernelKey, ...]:
    """Returns the keys of the twenty kernels, of an attention, and of a part of a divided sum."""
    return (*kernels(), key(attention(16, 1024, 64)), key(sums_of_parts(planner)))


def kernels() -> tuple[KernelKey, ...]:
    """Returns the keys of twenty kernels."""
    batch, rows = symbol("batch", 1), symbol("rows", 1)
    return (
        key(matmul(64, 64, 64)),
        key(matmul(384, 768, 768), (1,)),
        key(matmul(384, 577, 384)),
        key(matmul(1, 1000, 512), (1,)),
        key(matmul(batch, 256, 256), (1,)),
        key(matmul(batch, 128, 256, "exp"), (1,)),
        key(matmul(96, 96, rows)),
        key(matmul(128, 128, 64, "tanh"), (1,)),
        key(matmul(64, 96, 64), (1,), (1, 0)),
        key(matmul(64, 64, 128, dtype=BF16), (1,)),
        key(summed(512, 3000)),
        key(summed(300, 40, columns=True)),
        key(summed(rows, 768)),
        key(pointwise(500, 300)),
        key(pointwise(300, 500, transposed=True)),
        key(pointwise(batch, 1024)),
        key(softmax(128, 384)),
        key(softmax(rows, 1000)),
        key(conv(16, 32, 30, 3), (1,)),
        key(conv(64, 64, 14, 1), (1,)),
    )
