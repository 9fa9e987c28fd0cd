"""Rewrites contractions of bytes with zero points for matrix units, which multiply signed bytes.

    sum(k) (a[i, k] - za) * (b[k, j] - zb)              a u8, b constant
      ->  sum(k) a'[i, k] * b'[k, j]  +  oa * (B[j] + K*ob)  +  ob * A[i]
          with  a' = a - 128,  oa = 128 - za,  A[i] = sum(k) a'[i, k];  b', ob and B likewise

Integers wrap, so this is exact.  Most weights still fit signed bytes after their zero point is
subtracted: then ob is 0, B is a constant, and A is not needed.  Otherwise a kernel of its own may
compute A or B, and reads the factor once.

Requires layouts.  Establishes that these factors are casts from i8, in kernels that the target can
lower with such factors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import Expr, Stage, extent, with_reads
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Read,
    Scalar,
    StageRef,
    cast,
    index_value,
    indices_in,
    literal,
    read,
    read_from,
    replaced,
    substitute_indices,
    walk,
)
from tcc.ir.graph import Handle, Value, on_each_rank
from tcc.ir.index import Var, free_vars, of_atom
from tcc.ir.layout import row_major
from tcc.ir.op import Array
from tcc.ir.types import I8, I32, U8, TensorType, element_count
from tcc.passes.fuse.compose import drop_unused
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.passes.quantize.zero_points import signed_bytes
from tcc.schedule.nest import multiplied
from tcc.zipped import zip_equal

# Half the range of a byte: the difference of an unsigned byte and its signed form.
_HALF = 128


def with_signed_operands(placed: Placed, lowers: Callable[[Expr], bool]) -> Placed:
    """Returns `placed` with contractions of bytes rewritten to contractions of signed bytes.

    `lowers` returns False for an expression that the target cannot lower.  A kernel whose new
    expression cannot be lowered stays as it is.
    """
    steps: list[ProgramStep] = []
    constants, layouts = dict(placed.graph.constants), dict(placed.layouts)
    for step in placed.steps:
        work = None if step.kernel is None else _Rewriting(placed, step.kernel)
        if work is None or not work.run() or not lowers((kernel := work.kernel()).expr):
            steps.append(step)
            continue
        steps += (ProgramStep(sum_kernel) for sum_kernel in work.sums)
        steps.append(ProgramStep(kernel))
        constants |= work.constants
        layouts |= {v: row_major(v.shape) for sum_kernel in work.sums for v in sum_kernel.results}
    graph = replace(placed.graph, constants=constants)
    return replace(placed, graph=graph, steps=tuple(steps), layouts=layouts)


@frozen
class _Factor:
    """A factor, in i32: the i8 or u8 that `node` reads, minus `zero`.  A `zero` of None stands for
    0.
    """

    node: Read
    zero: Scalar | None


@frozen
class _Signed:
    """A factor, in i32: the i8 `value` plus `offset`.  An `offset` of None stands for 0."""

    value: Scalar
    offset: Scalar | None


class _Rewriting:
    """Rewrites one kernel, and collects its new stages and operands.

    `constants` are new constants, and `sums` new kernels that compute sums of factors.
    """

    def __init__(self, placed: Placed, old: Kernel) -> None:
        self.placed, self.old = placed, old
        self.operands = list(old.operands)
        self.stages = list(old.expr.stages)
        self.outputs = list(old.expr.outputs)
        self.constants: dict[Value, Handle] = {}
        self.sums: list[Kernel] = []

    def run(self) -> bool:
        """Rewrites the kernel's contractions of bytes; returns True if there are any."""
        has_contractions = False
        for number in range(len(self.stages)):
            factors = _factors(self.stages[number])
            if factors is not None:
                self._rewrite(number, *map(self._signed, factors))
                has_contractions = True
        return has_contractions

    def kernel(self) -> Kernel:
        params = tuple(v.type for v in self.operands)
        expr = Expr(params, tuple(self.stages), tuple(self.outputs))
        rewritten = without_unread(replace(self.old, expr=expr, operands=tuple(self.operands)))
        return replace(rewritten, expr=canonical(rewritten.expr))

    # ---- a contraction --------------------------------------------------------------------------

    def _rewrite(self, number: int, a: _Signed, b: _Signed) -> None:
        stage = self.stages[number]
        signed_product = cast(a.value, I32) * cast(b.value, I32)
        self.stages[number] = replace(stage, body=(signed_product,))
        correction = self._correction(stage, a, b)
        if correction is not None:
            self._add(number, stage, correction)

    def _signed(self, factor: _Factor) -> _Signed:
        """Returns a factor as signed bytes plus an offset.

        The offset of a constant is None if its values minus the zero point fit signed bytes.
        """
        node, zero = factor.node, factor.zero
        arrays = self._arrays(node)
        if arrays is not None and arrays[0].size:
            points = self._points(node, arrays[0].ndim, zero)
            signed = points and on_each_rank((arrays, points), lambda pair: signed_bytes(*pair))
            if signed is not None:
                return _Signed(self._constant(node, signed), None)
            if node.dtype is U8:
                halved = [(a.astype(np.int32) - _HALF).astype(np.int8) for a in arrays]
                return _Signed(self._constant(node, halved), _difference(_HALF, zero))
        if node.dtype is U8:
            return _Signed(cast(cast(node, I32) - _HALF, I8), _difference(_HALF, zero))
        return _Signed(node, None if zero is None else _difference(0, zero))

    def _points(self, node: Read, rank: int, zero: Scalar | None) -> Sequence[Array] | None:
        """Returns the zero points of a constant factor with `rank` axes, one array per rank of the
        job or one for all, each of which broadcasts to the factor.

        Returns None if the zero point is not constant.
        """
        if zero is None:
            return (np.zeros((), np.int32),)
        inner = zero.arg if isinstance(zero, Cast) else zero
        points = self._arrays(inner) if isinstance(inner, Read) and _is_operand(inner) else None
        if points is None or not isinstance(inner, Read):
            return None
        shape = []
        if points[0].size > 1:
            along = [n for n, i in enumerate(node.indices) if i is inner.indices[-1]]
            if points[0].ndim != 1 or len(along) != 1:
                return None
            shape = [-1 if n == along[0] else 1 for n in range(rank)]
        return [point.astype(np.int32).reshape(shape) for point in points]

    def _correction(self, stage: Stage, a: _Signed, b: _Signed) -> Scalar | None:
        """Returns what the offsets add to the sum of products; None if there are no offsets."""
        correction: Scalar | None = None
        for one, other in ((a, b), (b, a)):
            if one.offset is None:
                continue
            other_sum = self._sum_of(stage, other.value)
            if one is a and b.offset is not None:
                count = index_value(element_count(tuple(map(extent, stage.reduce))), I32)
                other_sum = other_sum + count * b.offset
            term = one.offset * other_sum
            correction = term if correction is None else correction + term
        return correction

    def _sum_of(self, stage: Stage, factor: Scalar) -> Scalar:
        """Returns a read of the factor's sums along the summed loops of `stage`.

        The sums of a constant factor are a new constant.  Otherwise a new kernel computes them.
        """
        (node,) = (n for n in walk(factor) if isinstance(n, Read))
        source = self._value(node)
        iters = tuple(v for v in stage.iters if any(v in free_vars(i) for i in node.indices))
        term = cast(replaced(factor, {node: read_from(node, 0)}), I32)
        expr = canonical(
            Expr((source.type,), (Stage(iters, stage.reduce, "sum", (term,)),), (StageRef(0),))
        )
        (sum_type,) = expr.types
        value, arrays = Value(f"{source.name}.sum", sum_type), self._arrays(node)
        if arrays is not None:
            sums = [np.asarray(evaluate_expr(expr, [array])[0]) for array in arrays]
            self._new_constant(value, sums)
        else:
            loc = f"{self.old.loc} (sums of {source.name})"
            self.sums.append(Kernel(expr, (source,), (value,), loc))
        return read(self._operand(value), tuple(map(of_atom, iters)), I32)

    def _add(self, number: int, stage: Stage, correction: Scalar) -> None:
        """Adds `correction` to the results of stage `number`, for all readers and outputs."""
        ref = StageRef(number)

        def with_correction(node: Read) -> Scalar:
            if node.source != ref:
                return node
            here = dict(zip_equal(stage.iters, node.indices))
            return node + substitute_indices(correction, here)

        for later in range(number + 1, len(self.stages)):
            old = self.stages[later]
            self.stages[later] = with_reads(old, with_correction)
        if ref in self.outputs:
            corrected = read(ref, stage.at, I32) + correction
            self.stages.append(Stage(stage.iters, (), None, (corrected,)))
            last = StageRef(len(self.stages) - 1)
            self.outputs = [last if o == ref else o for o in self.outputs]

    # ---- operands -------------------------------------------------------------------------------

    def _value(self, node: Read) -> Value:
        """Returns the operand that `node` reads."""
        assert isinstance(node.source, int)
        return self.operands[node.source]

    def _arrays(self, node: Read) -> tuple[Array, ...] | None:
        """Returns the arrays of a constant operand, one per rank or one for all."""
        value, graph = self._value(node), self.placed.graph
        handle = self.constants.get(value) or graph.constants.get(value)
        return None if handle is None else graph.store.arrays(handle)

    def _constant(self, node: Read, arrays: Sequence[Array]) -> Read:
        """Returns a read of `arrays`, a new operand of signed bytes, at the indices of `node`."""
        old = self._value(node)
        value = Value(f"{old.name}.i8", TensorType(I8, old.shape))
        self._new_constant(value, arrays)
        return read(self._operand(value), node.indices, I8)

    def _new_constant(self, value: Value, arrays: Sequence[Array]) -> None:
        self.constants[value] = self.placed.graph.store.put_per_rank(arrays, value.dtype)

    def _operand(self, value: Value) -> int:
        self.operands.append(value)
        return len(self.operands) - 1


# ---- recognition of contractions -----------------------------------------------------------------


def _factors(stage: Stage) -> tuple[_Factor, _Factor] | None:
    """Returns the two factors of a contraction of bytes with zero points.

    Returns None for other stages, and if both factors are signed bytes without zero points.
    """
    pair = multiplied(stage)
    if pair is None or stage.body[0].dtype is not I32 or pair.a is pair.b:
        return None
    a, b = _factor(stage, pair.a), _factor(stage, pair.b)
    if a is None or b is None:
        return None
    signed = all(f.zero is None and f.node.dtype is I8 for f in (a, b))
    return None if signed else (a, b)


def _factor(stage: Stage, scalar: Scalar) -> _Factor | None:
    value, zero = scalar, None
    if isinstance(scalar, Apply) and scalar.function == "sub":
        value, zero = scalar.args
    if not isinstance(value, Cast) or not isinstance(node := value.arg, Read):
        return None
    summed = set(free_vars(*node.indices)) >= set(stage.reduce)
    plain = node.fill is None and not node.indirect and _is_operand(node)
    if node.dtype not in (I8, U8) or not summed or not plain:
        return None
    return None if zero is not None and _varies(zero, stage.reduce) else _Factor(node, zero)


def _varies(scalar: Scalar, loops: Sequence[Var]) -> bool:
    indices = (index for node in walk(scalar) for index in indices_in(node))
    return not set(loops).isdisjoint(free_vars(*indices))


def _is_operand(node: Read) -> bool:
    return isinstance(node.source, int)


def _difference(value: int, zero: Scalar | None) -> Scalar:
    return literal(value, I32) if zero is None else value - zero


def without_unread(kernel: Kernel) -> Kernel:
    """Returns `kernel` without the operands that no stage reads."""
    expr, numbers = drop_unused(kernel.expr)
    return replace(kernel, expr=expr, operands=tuple(kernel.operands[n] for n in numbers))
