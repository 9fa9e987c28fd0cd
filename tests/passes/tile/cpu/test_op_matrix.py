"""The op matrix at tile level: every sample of every row with an expression agrees as a kernel."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.expr import Expr, extent
from tcc.ir.graph import Node, Value
from tcc.ir.index import evaluate
from tcc.ir.tile import TileKernel
from tcc.ir.tile.text import kernel_text
from tcc.passes.fuse.compose import compose

from tests.lib.op_matrix.cases import SOME_SYMBOLIC_CASES, each, fewer
from tests.lib.oracle.tile.parse import parse_kernel
from tests.ops.test_matrix import CASES, Case, check, reference, symbolic
from tests.part import part

from . import tiles
from .tiles import Array, Built, Chooser

# The evaluator takes a fraction of a millisecond per statement.
MOST_STEPS = 2000


def composed(case: Case, *, open_sizes: bool = False) -> tuple[Expr, list[Array]]:
    """Returns the expression of the one-node graph of a sample, and its operands."""
    types = symbolic(case.types) if open_sizes else case.types
    assert case.op.expr is not None
    inputs = tuple(t and Value(f"x{n}", t) for n, t in enumerate(types))
    results = case.op.infer(types, case.sample.attrs)
    outputs = tuple(Value(f"y{n}", t) for n, t in enumerate(results))
    expr, values = compose([Node(case.op, case.sample.attrs, inputs, outputs, "")], outputs)
    operands = [case.operands[inputs.index(v)] for v in values]
    return expr, [a for a in operands if a is not None]


def steps(built: Built, sizes: dict[str, int]) -> int:
    """Returns the approximate number of blocks that a kernel computes."""
    total = 0
    schedule = built.schedule
    for number, stage in enumerate(built.group.stages):
        trips = []
        for var in (*stage.iters, *stage.reduce):
            block = schedule.nest(number).block(var.name)
            if var.name in schedule.parallel:
                block = min(block, schedule.tile_size(var.name))
            trips.append(-(-int(evaluate(extent(var), sizes)) // block))
        total += prod(trips)
    return total


def schedules(case: Case, count: int) -> Sequence[Chooser]:
    """Returns the chosen schedule, and `count` random schedules."""
    seed = zlib.crc32(case.name.encode())
    return [tiles.chosen, *(tiles.drawn(np.random.default_rng(seed + n)) for n in range(count))]


_READ: set[tuple[str, ...]] = set()
_WIDTHS = ("2", "4", "8", "16", "32", "64")  # other numbers count as one token


def reads_back(kernel: TileKernel) -> None:
    """Checks that a kernel's text parses back, if it has three consecutive tokens that no earlier
    text had."""
    text = kernel_text(kernel)
    words = re.findall(r"[a-z_]+|[0-9]+|\S", text)
    tokens = ["0" if t.isdigit() and t not in _WIDTHS else t for t in words]
    triples = set(zip(tokens, tokens[1:], tokens[2:], strict=False))
    if not triples <= _READ:
        assert kernel_text(parse_kernel(text)) == text
        _READ.update(triples)


def agree(case: Case, expr: Expr, operands: list[Array], sizes: dict[str, int]) -> int:
    """Checks every schedule of a case; returns how many ran."""
    expected_results = reference(case)
    ran = 0
    for chooser in schedules(case, 1):
        built = tiles.build(expr, chooser)
        assert sizes or built.unproved == ()
        reads_back(built.kernel)
        if steps(built, sizes) > MOST_STEPS:
            continue
        actual = tiles.run_kernel(built.kernel, expr.types, operands, sizes)
        check(case, actual, expected_results, case.op.tolerance)
        ran += 1
    return ran


TILED = fewer((c for c in CASES if c.op.expr is not None and not c.half), 8, 3)


@each(part("kernels", TILED, 2))
def test_kernel_agrees_with_expression(case: Case) -> None:
    expr, operands = composed(case)
    agree(case, expr, operands, {})


# The intermediate value of this row is as long as a symbolic size, so that a tile cannot hold it:
# the partition has to split the row.
UNHELD = ("layer_normalization-statistics",)


@each(part("kernels of open sizes", SOME_SYMBOLIC_CASES, 2))
def test_kernel_with_open_sizes_agrees_with_expression(case: Case) -> None:
    expr, operands = composed(case, open_sizes=True)
    if case.name.startswith(UNHELD):
        with pytest.raises(InternalError, match="static size"):
            tiles.build(expr)
        return
    sizes = {f"n{n}": n for a in case.operands if a is not None for n in a.shape}
    agree(case, expr, operands, sizes)
