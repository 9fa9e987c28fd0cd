"""A value that a tile cannot hold is stored: the parts of every row with symbolic sizes agree, run
one by one."""

from __future__ import annotations

import numpy as np
from tcc.ir.expr import Expr
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Value
from tcc.passes.fuse.split import Kernel, split

from tests.lib.op_matrix.cases import SYMBOLIC_CASES, Case, check, each, reference
from tests.passes.tile.cpu import tiles
from tests.passes.tile.cpu.test_op_matrix import Array, composed


def whole(expr: Expr) -> Kernel:
    operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
    return Kernel(expr, operands, tuple(Value(f"y{n}", t) for n, t in enumerate(expr.types)))


def pieces(kernel: Kernel) -> tuple[Kernel, ...]:
    return split(kernel)


# The rows with a sample that is split.
SPLIT = ("layer_normalization",)


@each(c for c in SYMBOLIC_CASES if c.op.name in SPLIT)
def test_parts_compute_the_results_of_the_unsplit_kernel(case: Case) -> None:
    expr, arrays = composed(case, open_sizes=True)
    one = whole(expr)
    parts = pieces(one)
    arrays_by_value: dict[Value, Array] = dict(zip(one.operands, arrays, strict=True))
    sizes = {f"n{n}": n for a in arrays for n in a.shape}
    for part in parts:
        tiles.build(part.expr)  # refuses values that it cannot hold
        results = evaluate_expr(part.expr, [arrays_by_value[v] for v in part.operands], sizes)
        assert not set(part.results) & set(arrays_by_value)
        arrays_by_value.update(zip(part.results, results, strict=True))
    with np.errstate(all="ignore"):
        check(
            case, tuple(arrays_by_value[v] for v in one.results), reference(case), case.op.tolerance
        )
    names = [v.name for v in arrays_by_value]
    assert len(set(names)) == len(names)


def test_some_rows_need_a_split() -> None:
    split = (c for c in SYMBOLIC_CASES if len(pieces(whole(composed(c, open_sizes=True)[0]))) > 1)
    assert {c.op.name for c in split} == {*SPLIT}


def test_nothing_is_split_that_can_be_held() -> None:
    case = next(c for c in SYMBOLIC_CASES if c.name.startswith("softmax-"))
    one = whole(composed(case, open_sizes=True)[0])
    (only,) = pieces(one)
    assert only.expr is one.expr
