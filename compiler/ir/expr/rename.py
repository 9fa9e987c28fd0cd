"""Renames the iterators and the data-dependent index variables of expressions."""

from dataclasses import replace

from tcc.ir.expr import Expr, Stage, extent, reads
from tcc.ir.expr.scalar import substitute_all
from tcc.ir.index import Index, Substitution, Var, Vars, free_vars, iterator


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


def renamed(stage: Stage, mapping: Substitution) -> Stage:
    """Returns `stage` with its iterators and data-dependent indices renamed.

    All variables are replaced at the same time, so two of them may exchange their names.
    """
    return replace(
        stage,
        iters=_vars(stage.iters, mapping),
        reduce=_vars(stage.reduce, mapping),
        body=substitute_all(stage.body, mapping),
    )


def _vars(variables: Vars, mapping: Substitution) -> Vars:
    return tuple(free_vars(mapping[v])[0] for v in variables)
