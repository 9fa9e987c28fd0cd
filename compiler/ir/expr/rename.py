"""Renames the iterators and the data-dependent index variables of expressions."""

from dataclasses import replace

from tcc.ir.expr import Expr, Stage, extent, reads, renamed
from tcc.ir.index import Index, Var, Vars, iterator


def canonical(expr: Expr) -> Expr:
    """Returns the expression with iterators i0, i1, ... and data-dependent indices t0, t1, ... in
    order of use."""
    count = bound = 0
    stages = []
    for stage in expr.stages:
        mapping: dict[Var, Index] = {}
        for var in stage.loops:
            mapping[var] = iterator(f"i{count}", extent(var))
            count += 1
        for var in bound_indices(stage):
            mapping[var] = iterator(f"t{bound}", extent(var))
            bound += 1
        stages.append(renamed(stage, mapping))
    return replace(expr, stages=tuple(stages))


def bound_indices(stage: Stage) -> Vars:
    """Returns the data-dependent indices of a stage, each once, in order of use."""
    return tuple(dict.fromkeys(v for node in reads(stage) for v, _ in node.indirect))
