"""Rewrites an expression so that its f32 operands and results are stored in a narrower type.

    sum(k) x[i, k] * w[k, j]  with bf16   ->   bf16(sum(k) f32(x[i, k]) * f32(w[k, j]))

A later pass, which needs the kernels, decides which values are stored as bf16 or f16.  Until then,
prices use the rewritten expression.  Establishes that operands and results that were f32 have the
new type.
"""

from tcc.ir.expr import Expr, with_reads
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import Read, Scalar, StageRef, cast, read_from
from tcc.ir.types import F32, DType, TensorType
from tcc.passes.quantize.precision import cast_results


def stored_as(expr: Expr, floats: DType) -> Expr:
    """Returns `expr` with the type `floats` for those operands and results that have type f32.

    Values are cast to f32 where they are read, and to `floats` where they are stored.
    """
    if floats is F32:
        return expr

    def narrow(node: Read) -> Scalar:
        if isinstance(node.source, StageRef) or node.dtype is not F32:
            return node
        return cast(read_from(node, node.source, floats), F32)

    params = tuple(
        TensorType(floats, p.shape) if p is not None and p.dtype is F32 else p for p in expr.params
    )
    stages = (with_reads(s, narrow) for s in expr.stages)
    dtypes = [floats if t.dtype is F32 else t.dtype for t in expr.types]
    return canonical(cast_results(Expr(params, tuple(stages), expr.outputs), dtypes))
