"""Computes functions of a single index at compile time, and reads them from a table.

    place[o] = clamp(floor((o + 0.5) / 2 - 0.5), 0, 63) ;  x[i, place[o]]        o < 128
      ->  x[i, table[o]]        table: 128 constants

Resampling, windows and counts of pooled elements compute functions of this kind: positions and
weights.  Without a table they compute them again for every element along the other axes.  A load
takes as long as two operations.

Requires layouts.  Establishes that kernels compute no function of a single index that takes longer
than a load, if the index has a numeric range and the table would be small.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
from tcc.ir.expr import Expr, Stage, known_extent
from tcc.ir.expr.evaluate import evaluate_scalars
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Const,
    IndexValue,
    Scalar,
    children,
    read,
    replaced,
    walk,
)
from tcc.ir.graph import Handle, Value, walk_values
from tcc.ir.index import Var, const, free_vars, of_atom
from tcc.ir.types import TensorType
from tcc.known import all_known
from tcc.passes.layout.assign import Kernel, Placed
from tcc.schedule.limits import FusionLimits

# The number of operations that take as long as a load.
_LOAD = 2


def with_tables(placed: Placed, limits: FusionLimits) -> Placed:
    """Returns `placed` with kernels that read functions of one index from tables.

    A table has at most `limits.launch_bytes` bytes: loading a larger table would take longer than a
    launch.
    """
    tables = _Tables(placed, limits)
    steps = placed.with_kernels(tables.of_kernel)
    if not tables.constants:
        return placed
    constants = {**placed.graph.constants, **tables.constants}
    return replace(placed, graph=replace(placed.graph, constants=constants), steps=steps)


class _Tables:
    """The tables of a graph; equal tables are stored once."""

    def __init__(self, placed: Placed, limits: FusionLimits) -> None:
        self.constants: dict[Value, Handle] = {}
        self._store, self._max_bytes = placed.graph.store, limits.launch_bytes
        self._table_of: dict[Handle, Value] = {}
        used_names = {value.name for value in walk_values(placed.graph)}
        self._names = (name for n in count() if (name := f"table.{n}") not in used_names)

    def of_kernel(self, kernel: Kernel) -> Kernel:
        operands = list(kernel.operands)
        stages = tuple(self._of_stage(stage, operands) for stage in kernel.expr.stages)
        if len(operands) == len(kernel.operands):
            return kernel
        table_types = (value.type for value in operands[len(kernel.operands) :])
        expr = Expr((*kernel.expr.params, *table_types), stages, kernel.expr.outputs)
        return replace(kernel, expr=expr, operands=tuple(operands))

    def _of_stage(self, stage: Stage, operands: list[Value]) -> Stage:
        """Returns `stage` with reads of tables in place of functions of a single index.

        Adds the tables to `operands`, the operands of the stage's kernel.
        """
        table_reads: dict[Scalar, Scalar] = {}
        for scalar, var in _of_one_index(stage):
            size = known_extent(var)
            if size is None or size * scalar.dtype.bytes > self._max_bytes:
                continue
            table = self._table(scalar, var, size)
            if table not in operands:
                operands.append(table)
            table_reads[scalar] = read(operands.index(table), (of_atom(var),), scalar.dtype)
        if not table_reads:
            return stage
        return replace(stage, body=tuple(replaced(scalar, table_reads) for scalar in stage.body))

    def _table(self, scalar: Scalar, var: Var, size: int) -> Value:
        """Returns a constant that holds the values of `scalar` for `var` from 0 to `size` - 1."""
        with np.errstate(all="ignore"):
            (values,) = evaluate_scalars((scalar,), {var.name: np.arange(size)}, ())
        handle = self._store.put(values, scalar.dtype)
        if handle not in self._table_of:
            value = Value(next(self._names), TensorType(scalar.dtype, (const(size),)))
            self._table_of[handle] = value
            self.constants[value] = handle
        return self._table_of[handle]


def _of_one_index(stage: Stage) -> Iterator[tuple[Scalar, Var]]:
    """Yields the scalars that depend on a single loop of several, each with that loop.

    The scalar takes longer than a load.  Parts of a scalar that was yielded are not yielded.
    """
    indices: dict[Scalar, frozenset[Var] | None] = {}
    for scalar in walk(*stage.body):
        indices[scalar] = _indices(scalar, indices)
    visited: set[Scalar] = set()
    pending = list(stage.body)
    while pending:
        scalar = pending.pop()
        if scalar in visited:
            continue
        visited.add(scalar)
        var = next(iter(indices[scalar] or ()), None)
        is_loop = var in stage.loops and len(stage.loops) > 1
        if var is not None and len(indices[scalar] or ()) == 1 and is_loop and _is_long(scalar):
            yield scalar, var
        else:
            pending.extend(children(scalar))


def _indices(scalar: Scalar, inner: dict[Scalar, frozenset[Var] | None]) -> frozenset[Var] | None:
    """Returns the loops and size symbols on which `scalar` depends; None if it depends on data.

    `inner` has these results for the parts of `scalar`.
    """
    match scalar:
        case Const():
            return frozenset()
        case IndexValue():
            return frozenset(free_vars(scalar.index))
        case Apply() | Cast():
            parts = all_known(inner[child] for child in children(scalar))
            return None if parts is None else frozenset().union(*parts)
        case _:
            return None


def _is_long(scalar: Scalar) -> bool:
    return sum(isinstance(node, Apply | Cast) for node in walk(scalar)) > _LOAD
