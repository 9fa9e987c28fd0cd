"""Rounds the result of a stage to a narrow type, for the later stages that multiply it.

    s[i, k] = x[i, k] * r[i]           y[i, j] = sum(k) s[i, k] * w[k, j]
->  s[i, k] = bf16(x[i, k] * r[i])     y[i, j] = sum(k) f32(s[i, k]) * w[k, j]
"""

from collections.abc import Mapping
from dataclasses import replace

from tcc.ir.expr import Expr, ExprBuilder, Stage, extent, inserted, reads, with_reads
from tcc.ir.expr.scalar import Read, Scalar, StageRef, cast, read, read_from
from tcc.ir.index import free_vars
from tcc.ir.types import DType
from tcc.ops.shapes import replaced


def with_rounded(expr: Expr, readers_of: Mapping[StageRef, frozenset[int]], dtype: DType) -> Expr:
    """Returns `expr` with results of stages rounded to `dtype` for some of their readers.

    `readers_of` maps the reference of a result to the numbers of the stages that read it rounded.
    The readers convert it back to its own type.  All other stages read the result without rounding.
    """
    for ref in sorted(readers_of, key=lambda r: (r.stage, r.component), reverse=True):
        expr = _rounded(expr, ref, readers_of[ref], dtype)
    return expr


def rounding_stage(source: Stage, ref: StageRef, dtype: DType) -> Stage:
    """Returns a stage that rounds the result `ref` of the stage `source` to `dtype`."""
    builder = ExprBuilder()
    at = builder.iters(*(extent(v) for v in source.iters))
    dtype_before = source.body[ref.component].dtype
    iters = tuple(free_vars(i)[0] for i in at)
    return Stage(iters, (), None, (cast(read(ref, at, dtype_before), dtype),))


def with_cast(stage: Stage, component: int, dtype: DType) -> Stage:
    """Returns the stage with a component of its body converted to `dtype`."""
    narrow = cast(stage.body[component], dtype)
    return replace(stage, body=replaced(stage.body, component, narrow))


def _rounded(expr: Expr, ref: StageRef, rounding_readers: frozenset[int], dtype: DType) -> Expr:
    source = expr.stages[ref.stage]
    readers = {n for n, s in enumerate(expr.stages) if any(r.source == ref for r in reads(s))}
    if source.monoid is None and readers == rounding_readers and ref not in expr.outputs:
        narrow, stages = ref, list(expr.stages)
        stages[ref.stage] = with_cast(source, ref.component, dtype)
    else:
        narrow = StageRef(ref.stage + 1)
        expr = inserted(expr, narrow.stage, rounding_stage(source, ref, dtype))
        stages = list(expr.stages)
    for number in rounding_readers:
        place = number + narrow.stage - ref.stage
        stages[place] = _reading(stages[place], ref, narrow, dtype)
    return replace(expr, stages=tuple(stages))


def _reading(stage: Stage, ref: StageRef, narrow: StageRef, dtype: DType) -> Stage:
    """Returns `stage` with reads of the narrow result `narrow` in place of reads of `ref`.

    The narrow values are converted back to the type of `ref`.
    """

    def from_narrow(node: Read) -> Scalar:
        if node.source != ref:
            return node
        return cast(read_from(node, narrow, dtype), node.dtype)

    return with_reads(stage, from_narrow)
