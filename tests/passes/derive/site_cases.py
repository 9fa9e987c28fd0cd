"""Graphs whose sites the whole pass must derive, with the prices of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_index, const
from tcc.ir.region.check import equal_at
from tcc.ir.types import I64
from tcc.ops import OPS
from tcc.ops.algebra.movement import ExpandAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.algebra.window import ConvTransposeAttrs
from tcc.ops.composite.resize import ResizeAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.derive.bilinear.convolutions import Tiled
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.derive import Derivations, SiteOptions, decisions
from tcc.passes.derive.merge import MergePrices, merge_contractions
from tcc.passes.derive.prices import Prices
from tcc.passes.derive.resampling import move_resamplings
from tcc.passes.derive.rewritten import Rewritten
from tcc.passes.derive.sites import DerivationSite, composed
from tcc.passes.derive.zeros import skip_zeros
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.passes.moe.grouped_gemm import group_gemms
from tcc.passes.moe.price import GroupedGemmPrices
from tcc.passes.program.price import cheapest, priced_kernels
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.cpu.work import group_flops
from tcc.schedule.margins import MARGINS

from tests.passes.derive.bilinear.bilinear_maps import computes, correlation
from tests.passes.fuse.models import Model

Array = np.ndarray[Any, np.dtype[Any]]

SERVER = shipped_machine("icelake-server")


def planner() -> CoreChooser:
    core = CoreModel(16, 32, SERVER.l2.size, SERVER.cores)
    return CoreChooser(core, Pricer(SERVER))


def limits(growth: float = 5.0) -> Derivations:
    return Derivations(Prices(planner()), growth)


# ---- graphs -------------------------------------------------------------------------------------


def linear_attention(tokens: int = 256, width: int = 8, heads: int = 2) -> Graph:
    m = Model("linear_attention")
    q, k, v = (m.input(name, 1, tokens, heads * width) for name in "qkv")

    def split(x: Value) -> Value:
        return m.transpose(m.reshape(x, 1, tokens, heads, width), 0, 2, 1, 3)

    scores = m.op("matmul", split(q), m.transpose(split(k), 0, 1, 3, 2))
    return m.finish(m.op("matmul", scores, split(v)))


def low_rank(rows: int = 64, width: int = 192, rank: int = 24) -> Graph:
    """Returns `xW + (xA)B` with constant matrices."""
    m = Model("low_rank")
    x, w = m.input("x", rows, width), m.weight(width, width)
    side = m.op("matmul", m.op("matmul", x, m.weight(width, rank)), m.weight(rank, width))
    return m.finish(m.op("add", m.op("matmul", x, w), side))


def updated(rows: int = 1, width: int = 192, rank: int = 8) -> Graph:
    """Returns `x(W + AB)` of inputs."""
    m = Model("updated")
    x, w = m.input("x", rows, width), m.input("w", width, width)
    side = m.op("matmul", m.input("a", width, rank), m.input("b", rank, width))
    return m.finish(m.op("matmul", x, m.op("add", w, side)))


def mean_of_rows(rows: int = 64, width: int = 96) -> Graph:
    """Returns the mean of the rows of a matmul with a bias."""
    m = Model("mean_of_rows")
    y = m.op("matmul", m.input("x", rows, width), m.weight(width, width))
    y = m.op("add", y, m.weight(width))
    return m.finish(m.op("reduce_mean", y, attrs=ReduceAttrs((0,), False)))


def mean_of_image(size: int = 14, channels: int = 96) -> Graph:
    """Returns a global average pool behind a 1 x 1 convolution with a bias."""
    m = Model("mean_of_image")
    y = m.conv(m.input("x", 1, channels, size, size), channels, 1, bias=True)
    return m.finish(m.op("reduce_mean", y, attrs=ReduceAttrs((2, 3), True)))


def mean_of_windows(size: int = 28, channels: int = 96) -> Graph:
    """Returns a 2 x 2 average pool behind a 1 x 1 convolution."""
    m = Model("mean_of_windows")
    y = m.conv(m.input("x", 1, channels, size, size), channels, 1)
    two, none, one = (2, 2), (const(0),) * 2, (1, 1)
    return m.finish(m.op("average_pool", y, attrs=PoolAttrs(two, none, none, one, two)))


def mean_between(tokens: int = 50, width: int = 96) -> Graph:
    """Returns a matmul, the mean of its tokens, and another matmul."""
    m = Model("mean_between")
    y = m.op("matmul", m.input("x", 1, tokens, width), m.weight(width, width))
    mean = m.op("reduce_mean", y, attrs=ReduceAttrs((1,), False))
    return m.finish(m.op("matmul", mean, m.weight(width, width)))


def diagonal(equation: str = "ii->i", size: int = 320) -> Graph:
    m = Model("diagonal")
    product = m.op("matmul", m.input("a", size, size), m.input("b", size, size))
    return m.finish(m.op("einsum", product, attrs=OPS["einsum"].attrs(equation)))


def total(size: int = 96) -> Graph:
    m = Model("total")
    product = m.op("matmul", m.input("a", size, size), m.input("b", size, size))
    return m.finish(m.op("reduce_sum", product, attrs=ReduceAttrs((0, 1), False)))


def normalised(rows: int = 64, width: int = 2048, features: int = 64) -> Graph:
    """Returns a root mean square norm before a matmul."""
    m = Model("normalised")
    x = m.op("relu", m.input("x", rows, width))
    mean = m.op("reduce_mean", m.op("mul", x, x), attrs=ReduceAttrs((1,), True))
    scale = m.op("reciprocal", m.op("sqrt", m.op("add", mean, m.scalar(1e-5))))
    rows_ = m.op("mul", m.op("mul", x, scale), m.weight(width))
    return m.finish(m.op("relu", m.op("matmul", rows_, m.weight(width, features))))


def conv(size: int, channels: int, *, stride: int = 1) -> Graph:
    m = Model("conv")
    x = m.op("relu", m.input("x", 1, channels, size, size))
    return m.finish(m.op("relu", m.conv(x, channels, 3, stride=stride, pad=1)))


def upsampled(size: int = 24, channels: int = 64, features: int = 64) -> Graph:
    """Returns a transposed convolution with 4 x 4 taps, whose stride 2 gives four phases of 2 x 2
    taps."""
    m = Model("upsampled")
    x = m.op("relu", m.input("x", 1, channels, size, size))
    attrs = ConvTransposeAttrs((2, 2), (1, 1), (1, 1), (1, 1), (0, 0), 1)
    weights = m.weight(channels, features, 4, 4), m.weight(features)
    return m.finish(m.op("relu", m.op("conv_transpose", x, *weights, attrs=attrs)))


# ---- derived sites ------------------------------------------------------------------------------


class SiteCase(NamedTuple):
    """A graph, and a part of the chain of a candidate for one of its sites."""

    graph: Callable[[], Graph]
    goal: str

    def decision(self) -> SiteOptions:
        """Returns the decision of the first site that has such a candidate, else of the first
        site."""
        every = decisions(self.graph(), limits())
        reached = (d for d in every if any(self.goal in o.candidate.chain for o in d.options))
        return next(reached, every[0])


SITES: Mapping[str, SiteCase] = MappingProxyType(
    {
        "3x3 of 56": SiteCase(partial(conv, 56, 64), "F(4 x 4, 3 x 3)"),
        "3x3 of 14": SiteCase(partial(conv, 14, 256), "F(2 x 2, 3 x 3)"),
        "2x2 phases": SiteCase(upsampled, "F(3 x 3, 2 x 2)"),
        "linear attention": SiteCase(linear_attention, "(x0 (x1 x2))"),
        "low rank": SiteCase(low_rank, "take x0 out of two terms"),
        "update of inputs": SiteCase(updated, "multiply out"),
        "diag(AB)": SiteCase(diagonal, "(x0 x1)"),
        "trace(AB)": SiteCase(partial(diagonal, "ii->"), "(x0 x1)"),
        "sum(AB)": SiteCase(total, "(x0 x1)"),
        "mean of rows": SiteCase(mean_of_rows, "multiply out"),
        "mean of image": SiteCase(mean_of_image, "multiply out"),
        "mean of 56 x 56": SiteCase(partial(mean_of_image, 56, 8), "multiply out"),
        "mean of windows": SiteCase(mean_of_windows, "(x0 x1)"),
        "mean between": SiteCase(mean_between, "(x0 (x1 x2))"),
        "scale of RMSNorm": SiteCase(normalised, "((x0 (x2 x3)) x1)"),
    }
)


def is_exact(site: DerivationSite, candidate: Candidate) -> bool:
    """Returns True if a candidate computes its site: regions are compared modulo two primes,
    bilinear forms by the identity of their factors in rational numbers."""
    if isinstance(candidate, Tiled):
        forms = [each for each in candidate.form if each.points > 1]
        return all(computes(f.algorithm, correlation(f.tile, f.taps)) for f in forms)
    assert isinstance(candidate, Rewritten)
    return equal_at(composed(site.nodes), candidate.region)


# ---- merged and grouped matmuls -----------------------------------------------------------------


class Whole(Model):
    """A graph whose weights are small integers, so that sums of f32 are exact."""

    def weight(self, *shape: int, low: float = -3) -> Value:
        array = self._rng.integers(int(low), 4, shape).astype(np.float32)
        return self.builder.constant(array, "w")


class GraphCase(NamedTuple):
    """A graph of integers, a pass that rewrites it, the number of nodes of an op in the result, and
    the largest share of the graph's operations that the result may take."""

    graph: Callable[[], Graph]
    derived: Callable[[Graph], Graph]
    op: str
    count: int
    share: float = 1.5

    def operations(self) -> tuple[int, int]:
        """Returns the operations of the kernels before and after the pass."""
        graph = self.graph()
        return operations(graph), operations(self.derived(graph))


def operations(graph: Graph) -> int:
    """Returns the floating-point operations of a graph's kernels."""
    exprs = [kernel.expr for kernel, _ in priced_kernels(graph, planner())]
    storage = (row_major_storage(e, (False,) * len(e.params)) for e in exprs)
    return sum(group_flops(build_group(e, *s)) for e, s in zip(exprs, storage, strict=True))


def shared_rows(width: int = 512) -> Graph:
    """Returns a token's queries, keys and values."""
    m = Whole("shared_rows")
    x = m.op("relu", m.input("x", 1, width))
    weights = (m.weight(width, n) for n in (width, 64, 64))
    return m.finish(*(m.op("abs", m.op("matmul", x, w)) for w in weights))


def experts(tokens: int = 256, depth: int = 64, width: int = 128, number: int = 4) -> Graph:
    """Returns matmuls of rows with two data-dependent matrices for each row."""
    m = Whole("experts")
    index, rows = m.input("index", tokens, 2, dtype=I64), m.input("x", tokens, 1, 1, depth)
    chosen = m.op("gather", m.weight(number, depth, width), index, attrs=AxisAttrs(0))
    return m.finish(m.op("abs", m.op("matmul", rows, chosen)))


def resized(
    size: int = 28,
    larger: int = 56,
    *,
    mode: str = "linear",
    coordinates: str = "half_pixel",
    rounding: str = "floor",
    channels: int = 64,
    features: int = 64,
    as_rows: bool = False,
) -> Graph:
    """Returns a Resize and a 1 x 1 convolution, or a matmul of the pixels as rows."""
    m = Whole("resized")
    shape = tuple(map(as_index, (1, channels, larger, larger)))
    x = m.input("x", 1, channels, size, size)
    attrs = ResizeAttrs(shape, (None,) * 4, mode, coordinates, rounding)
    y = m.op("resize", x, attrs=attrs)
    if not as_rows:
        return m.finish(m.conv(y, features, 1))
    y = m.reshape(m.transpose(y, 0, 2, 3, 1), 1, larger * larger, channels)
    y = m.op("add", m.op("matmul", y, m.weight(channels, features)), m.weight(features))
    return m.finish(m.op("relu", y))


def repeated(inner: bool, rows: int = 96, times: int = 4, width: int = 64) -> Graph:
    """Returns two matmuls of rows of which each is repeated (`inner`), or of repeated rows."""
    m = Whole("repeated")
    shape = (2, rows, times, width) if inner else (2, times, rows, width)
    y = m.input("x", 2, rows, width)
    y = m.reshape(y, *(1 if n == times else n for n in shape))
    y = m.op("expand", y, attrs=ExpandAttrs(tuple(map(as_index, shape))))
    y = m.reshape(y, 2, rows * times, width)
    y = m.op("relu", m.op("matmul", y, m.weight(width, width)))
    return m.finish(m.op("matmul", y, m.weight(width, width)))


def by_matrix(matrix: Array, rows: int = 64) -> Graph:
    """Rows by a constant matrix."""
    m = Model("by_matrix")
    x = m.input("x", rows, matrix.shape[0])
    return m.finish(m.op("matmul", x, m.builder.constant(matrix.astype(np.float32), "w")))


def masked(axes: tuple[int, ...], size: int = 384) -> Graph:
    """The sum along `axes` of a product of matrices times the identity."""
    m = Model("masked")
    product = m.op("matmul", m.input("a", size, size), m.input("b", size, size))
    eye = m.builder.constant(np.eye(size, dtype=np.float32), "eye")
    return m.finish(m.op("reduce_sum", m.op("mul", product, eye), attrs=ReduceAttrs(axes, False)))


def one_hot(
    rows: int = 64,
    size: int = 300,
    width: int = 96,
    *,
    on: float = 1,
    off: float = 0,
    first: int = 0,
    last: float = 1,
) -> Graph:
    """A matrix whose rows are `on` at their indices, by a table whose last number is `last`.

    Columns are counted from `first`.
    """
    m = Model("one_hot")
    places = m.reshape(m.input("index", 2, rows // 2, dtype=I64), 2, rows // 2, 1)
    columns = m.builder.constant(np.arange(first, first + size), "columns")
    matrix = m.op("where", m.op("equal", places, columns), m.scalar(on), m.scalar(off))
    table = _whole(size, width)
    table[-1, -1] = last
    return m.finish(m.op("matmul", matrix, m.builder.constant(table, "table")))


def _whole(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(1, 5, shape).astype(np.float32)


def _shuffled(size: int) -> Array:
    return np.random.default_rng(size).permutation(size)


_SIZE = 256
# Matrices with zeros or repeats, by their structure.
MATRICES: Mapping[str, Array] = MappingProxyType(
    {
        "identity": np.eye(_SIZE),
        "permutation": np.eye(_SIZE)[_shuffled(_SIZE)],
        "one-hot columns": np.eye(_SIZE)[:, _shuffled(_SIZE)[:200] // 2],
        "diagonal": np.diag(_whole(_SIZE)),
        "every fourth": np.eye(_SIZE)[:, ::4],
        "blocks": np.kron(np.eye(8), np.ones((32, 32))) * _whole(_SIZE, _SIZE),
        "lower triangle": np.tril(_whole(_SIZE, _SIZE)),
        "upper triangle": np.triu(_whole(_SIZE, _SIZE)),
        "lower ones": np.tril(np.ones((1024, 1024))),
        "upper ones": np.triu(np.ones((1024, 1024))) * _whole(1024)[:, None],
        "band": np.tril(np.triu(_whole(_SIZE, _SIZE), -8), 8),
        "zero rows": _whole(_SIZE, _SIZE) * (np.arange(_SIZE) < 64)[:, None],
        "repeated columns": _whole(_SIZE, 64)[:, _shuffled(_SIZE) // 4],
        "Kronecker": np.kron(_whole(16, 16), _whole(32, 32)),
        "outer product": np.outer(_whole(_SIZE), _whole(_SIZE)),
        "repeated rows": np.tile(_whole(64, _SIZE), (4, 1)),
        "columns repeated once": _whole(_SIZE, 128)[:, _shuffled(_SIZE)[:200] // 2],
    }
)


def merged(graph: Graph) -> Graph:
    return merge_contractions(graph, MergePrices(planner()))


def _cheapest(graphs: Sequence[Graph]) -> int:
    return cheapest(graphs, planner(), margin=MARGINS["derivation"])


def without_zeros(graph: Graph) -> Graph:
    return skip_zeros(graph, _cheapest)


def resampled_late(graph: Graph) -> Graph:
    return move_resamplings(graph, _cheapest)


def grouped(graph: Graph) -> Graph:
    return group_gemms(graph, GroupedGemmPrices(planner(), (16, 32)).tile_of)


def zeros(
    key: str | tuple[int, ...], count: int, share: float, op: str = "expression"
) -> GraphCase:
    """Rows by a matrix of MATRICES, or the sum of a masked product along axes."""
    by_name = isinstance(key, str)
    graph = partial(by_matrix, MATRICES[key]) if by_name else partial(masked, key)
    return GraphCase(graph, without_zeros, op, count, share)


GRAPHS: Mapping[str, GraphCase] = MappingProxyType(
    {
        "shared rows": GraphCase(shared_rows, merged, "matmul", 1),
        "experts' rows": GraphCase(experts, grouped, "expression", 4),
        "identity": zeros("identity", 2, 0.02),
        "permutation": zeros("permutation", 2, 0.02),
        "one-hot columns": zeros("one-hot columns", 2, 0.02),
        "diagonal": zeros("diagonal", 2, 0.02),
        "every fourth": zeros("every fourth", 2, 0.02),
        "blocks": zeros("blocks", 2, 0.14),
        "lower triangle": zeros("lower triangle", 9, 0.6),
        "upper triangle": zeros("upper triangle", 9, 0.6),
        "lower ones": zeros("lower ones", 1, 0.002, "cum_sum"),
        "upper ones": zeros("upper ones", 1, 0.002, "cum_sum"),
        "band": zeros("band", 9, 0.25),
        "zero rows": zeros("zero rows", 2, 0.27),
        "repeated columns": zeros("repeated columns", 1, 0.26, "gather"),
        "Kronecker": zeros("Kronecker", 2, 0.1),
        "outer product": zeros("outer product", 2, 0.02),
        "repeated rows": zeros("repeated rows", 2, 0.26),
        "columns repeated once": zeros("columns repeated once", 1, 0.62, "gather"),
        "masked diag(AB)": GraphCase(partial(masked, (1,)), without_zeros, "expression", 2, 0.03),
        "masked trace(AB)": GraphCase(
            partial(masked, (0, 1)), without_zeros, "expression", 1, 0.03
        ),
        "nearest": GraphCase(
            partial(resized, mode="nearest", coordinates="asymmetric"),
            resampled_late,
            "conv",
            1,
            0.26,
        ),
        "nearest of 42": GraphCase(
            partial(resized, 28, 42, mode="nearest"), resampled_late, "conv", 1, 0.46
        ),
        "bilinear": GraphCase(resized, resampled_late, "conv", 1, 0.3),
        "bilinear rows": GraphCase(
            partial(resized, as_rows=True), resampled_late, "matmul", 1, 0.35
        ),
        "repeat_interleave": GraphCase(partial(repeated, True), resampled_late, "matmul", 2, 0.26),
        "tile": GraphCase(partial(repeated, False), resampled_late, "matmul", 2, 0.26),
    }
)


def is_reached(case: GraphCase) -> bool:
    """Returns True if the rewritten graph has the nodes and gives exactly the results of the
    original."""
    graph = case.graph()
    after = case.derived(graph)
    if [node.op.name for node in after.nodes].count(case.op) != case.count:
        return False
    before, then = case.operations()
    if then > case.share * before:
        return False
    rng = np.random.default_rng(len(graph.name))
    feeds = {
        v.name: rng.integers(0, 4, v.type.static_shape).astype(v.type.dtype.carrier)
        for v in graph.inputs
    }
    want, got = evaluate_graph(graph, feeds), evaluate_graph(after, feeds)
    return all(np.array_equal(got[name], array) for name, array in want.items())
