"""Products of matrices by products of blocks: exact, within the stated bound, taken by price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import symbol
from tcc.ir.types import F32, F64, tensor
from tcc.passes.derive.algebra.fold import fold
from tcc.passes.derive.bilinear import blocked as module
from tcc.passes.derive.bilinear.algorithms import STRASSEN, WINOGRAD, Bilinear
from tcc.passes.derive.bilinear.blocked import Blocked, blocked
from tcc.passes.derive.bilinear.shared_sums import shared_sums
from tcc.passes.derive.check import equal_at
from tcc.passes.derive.derive import Decision, decisions
from tcc.passes.derive.record import Factor, Region, Stage, product
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.blocks import BLOCK_ALGORITHMS, by_blocks
from tcc.passes.derive.rules.rule import Refused
from tcc.passes.derive.sites import Site, composed, sites
from tcc.schedule.limits import Rates

from tests.passes.bilinear_maps import block_product
from tests.passes.fuse.models import Model

from .regions import affine, convolution, matmul, operands, values
from .test_derive import limits

Run = Callable[[Graph], Any]


@pytest.mark.parametrize(
    ("algorithm", "additions", "amplification"),
    [(STRASSEN, (5, 5, 8), 6), (WINOGRAD, (4, 4, 7), 9)],
)
def test_blocks_are_multiplied_exactly(
    algorithm: Bilinear, additions: tuple[int, ...], amplification: int
) -> None:
    assert algorithm.computes(block_product())
    assert algorithm.products == 7
    factors = algorithm.inputs, algorithm.weights, algorithm.results
    assert [shared_sums(m).operations for m in factors] == [{"+": n} for n in additions]
    assert algorithm.amplification(2) == amplification
    for name in ("inputs", "weights", "results"):
        matrix = getattr(algorithm, name)
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                changed = (*row[:j], value + Fraction(1), *row[j + 1 :])
                wrong = replace(algorithm, **{name: (*matrix[:i], changed, *matrix[i + 1 :])})
                assert not wrong.computes(block_product())


def heads(batch: int, rows: int, columns: int, steps: int) -> Region:
    """y[b, h, i, j] = sum(k) x[b, i, h, k] * w[h, j, k]."""
    b, h, i, j, k = (affine(*(int(n == m) for n in range(5))) for m in range(5))
    factors = Factor(0, 0, (b, i, h, k), F32), Factor(1, 0, (h, j, k), F32)
    stage = Stage(
        (batch, 2, rows, columns), (steps,), "sum", factors, product((F32, F32), F32, 0.5)
    )
    params = tensor(F32, batch, rows, 2, steps), tensor(F32, 2, columns, steps)
    return Region(params, (stage,), ((0, 0),))


REGIONS = {
    "even": matmul(4, 6, 8),
    "odd": matmul(5, 7, 9, transposed=True),
    "short": matmul(4, 5, 6),
    "vector of blocks": matmul(2, 2, 2),
    "batch": heads(3, 5, 4, 6),
}


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("rule", BLOCK_ALGORITHMS)
@pytest.mark.parametrize("levels", [1, 2])
def test_a_product_by_blocks_is_exact_everywhere(name: str, rule: str, levels: int) -> None:
    region = REGIONS[name]
    if name == "vector of blocks" and levels > 1:
        with pytest.raises(Refused, match="no 2 levels"):
            RULES[rule].apply(region, 0, levels)
        return
    new = RULES[rule].apply(region, 0, levels)
    arrays = operands(region)
    assert np.array_equal(values(region, arrays)[0], values(new, arrays)[0])
    assert new.stages[2].iters[0] == 7**levels


def test_rows_of_symbolic_number_stay_beside_blocks_of_others() -> None:
    n = symbol("n")
    region = heads(4, 4, 4, 4)
    (stage,) = region.stages
    params = tensor(F32, n, 4, 2, 4), region.params[1]
    region = Region(params, (stage._replace(iters=(n, 2, 4, 4)),), region.outputs)
    new = RULES["strassen"].apply(region, 0, 1)
    assert new.stages[2].iters == (7, n, 2, 2, 2)
    assert equal_at(region, new)
    with pytest.raises(Refused, match="known extent"):
        RULES["strassen"].apply(matmul(n, 8, 8), 0, 1)


def of_f64(region: Region) -> Region:
    (stage,) = region.stages
    factors = tuple(f._replace(dtype=F64) for f in stage.factors)
    wide = stage._replace(factors=factors, body=product((F64, F64), F64))
    params = tuple(tensor(F64, *p.shape) for p in region.params if p is not None)
    return Region(params, (wide,), region.outputs)


def sliced(steps: int) -> Region:
    """A product that sums over a part of its operands."""
    region = matmul(4, 4, 8)
    (stage,) = region.stages
    return region._replace(stages=(stage._replace(sums=(steps,)),))


@pytest.mark.parametrize(
    ("region", "levels", "why"),
    [
        (matmul(8, 8, 8), 0, "no 0 levels"),
        (matmul(8, 8, 8), 3, "no 3 levels"),
        (matmul(8, 3, 8), 2, "no 2 levels"),
        (convolution(), 1, "several places"),
        (of_f64(matmul(4, 4, 4)), 1, "f32 alone"),
        (sliced(5), 1, "no zeros"),
    ],
)
def test_other_products_are_refused(region: Region, levels: int, why: str) -> None:
    with pytest.raises(Refused, match=why):
        RULES["winograd"].apply(region, 0, levels)
    assert RULES["winograd"].apply(sliced(6), 0, 1)


def test_sums_of_constant_blocks_are_made_in_f64() -> None:
    region = by_blocks(matmul(4, 6, 9), 0, 2, algorithm=STRASSEN)
    weights = np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)
    (known,) = fold(region, (False, True), [None, weights])[1]
    padded = np.zeros((12, 8))
    padded[:9, :6] = weights
    grid = padded.reshape(2, 2, 3, 2, 2, 2).transpose(0, 3, 1, 4, 5, 2).reshape(4, 4, 2, 3)
    factor = np.array([[float(x) for x in row] for row in STRASSEN.weights])
    wanted = np.einsum("pa,qb,abnk->pqnk", factor, factor, grid).reshape(49, 2, 3)
    np.testing.assert_allclose(known, wanted, rtol=1e-15)


# ---- sites --------------------------------------------------------------------------------------


def linear(rows: int, steps: int, columns: int) -> Graph:
    m = Model("linear")
    y = m.op("matmul", m.input("x", rows, steps), m.weight(steps, columns))
    return m.finish(m.op("relu", m.op("add", y, m.weight(columns))))


def only(graph: Graph) -> Decision:
    (found,) = decisions(graph, limits())
    return found


def rules(decision: Decision) -> list[str]:
    return [o.candidate.chain for o in decision.options if isinstance(o.candidate, Blocked)]


def test_prices_take_blocks_of_many_rows_and_refuse_them_of_128() -> None:
    many, few = only(linear(512, 1024, 4096)), only(linear(128, 1024, 4096))
    assert many.chosen is not None
    assert many.chosen.candidate.chain.startswith("strassen")
    assert many.seconds is not None
    assert many.seconds > 1.1 * (many.chosen.seconds or 0)
    assert rules(few)
    assert few.chosen is None
    assert not rules(only(linear(8, 64, 64)))


def test_strict_numerics_and_a_target_without_levels_leave_blocks_out() -> None:
    graph = linear(512, 1024, 4096)
    for changed in (replace(limits(), strict=True), replace(limits(), levels=())):
        (found,) = decisions(graph, changed)
        assert not rules(found)


def candidate(graph: Graph, levels: int) -> tuple[Site, Blocked]:
    (site,) = sites(graph)
    free = Rates(products=1.0, exchanged=1e30, weights=1e30)
    return site, next(
        c for c in blocked(site, free, (levels,)).candidates if isinstance(c, Blocked)
    )


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_levels_are_checked_as_they_are_emitted(levels: int) -> None:
    site, found = candidate(linear(512, 512, 512), levels)
    assert found.amplification in (6**levels, 9**levels)
    assert found.unchecked(site) == ""
    other = replace(found, region=composed(site.nodes))
    with pytest.raises(InternalError, match="changes what is computed"):
        other.unchecked(site)


def test_a_wrong_algorithm_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    site, found = candidate(linear(64, 64, 64), 1)
    rows = STRASSEN.results
    wrong = replace(STRASSEN, results=(rows[1], rows[0], *rows[2:]))

    def after(region: Region, _: object) -> Region:
        return by_blocks(region, 0, 1, algorithm=wrong)

    monkeypatch.setattr(module, "_after", after)
    with pytest.raises(InternalError, match="changes what is computed") as caught:
        found.unchecked(site)
    assert found.chain in str(caught.value)


def taken(graph: Graph, site: Site, found: Blocked) -> Graph:
    """The graph with a candidate in the place of its only node."""

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        operands = [v for v in inputs if v is not None]
        arrays = [b.array(v) if c else None for v, c in zip(operands, site.constants, strict=True)]
        value = found.emit(b, operands, arrays)
        return None if value is None else [value]

    return rewritten(graph, visit)


@pytest.mark.parametrize("levels", [1, 2])
def test_results_keep_the_stated_bound_with_outliers(levels: int, compiled: Run) -> None:
    m = Model("product")
    w = m.weight(258, 71)
    graph = m.finish(m.op("matmul", m.input("x", 65, 258), w))
    site, found = candidate(graph, levels)
    module_ = compiled(taken(graph, site, found))
    weights = np.asarray(graph.store.get(graph.constants[w]), np.float64)
    sums = sum(shared_sums(f).roundings for f in (STRASSEN.inputs, STRASSEN.results))
    n = 2.0**-24 * (levels * sums + 1 + -(-258 // 2**levels))
    worst = found.amplification * n / (1 - n) * 258 * np.abs(weights).max()
    rng = np.random.default_rng(0)
    for size in (1e0, 1e2, 1e4, 1e6):
        x = rng.uniform(-1, 1, (65, 258)).astype(np.float32)
        x[tuple(rng.integers(0, n, 4) for n in x.shape)] = size
        (y,) = module_.run({"x": x}).values()
        error = np.abs(y - x.astype(np.float64) @ weights).max()
        assert 0 < error <= worst * size


def test_weights_that_are_not_finite_stay() -> None:
    m = Model("product")
    graph = m.finish(m.op("matmul", m.input("x", 64, 64), m.weight(64, 64)))
    site, found = candidate(graph, 1)
    (value,) = graph.constants
    array = np.array(graph.store.get(graph.constants[value]))
    array[3, 4] = np.inf
    handle = graph.store.put(array, value.type.dtype)
    changed = replace(graph, constants={value: handle})
    assert taken(changed, site, found).nodes[0].op.name == "matmul"
