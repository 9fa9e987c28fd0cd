"""Sums of products of bytes less their zero points, as what matrix units multiply: signed bytes.

    sum(k) (a[i, k] - za) * (b[k, j] - zb)              a u8, b constant
      ->  sum(k) a'[i, k] * b'[k, j]  +  oa * (B[j] + K*ob)  +  ob * A[i]
          a' = a - 128, oa = 128 - za, and b', ob likewise; A and B sums of a' and b' along k

Integers wrap, so all of it is exact.  Weights that fit signed bytes after their zero point is taken
off have no offset, which is most of them: then B is a constant, and A is not needed.  Otherwise
sums of what is no constant are kernels of their own, which read it once.

Requires layouts.  Establishes factors that are casts from i8 where kernels of such can be made.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tcc.ir.expr import Expr, Stage, extent, reads, with_reads, with_sources
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Read,
    Scalar,
    Source,
    StageRef,
    apply,
    cast,
    index_value,
    indices_in,
    literal,
    read,
    substitute_indices,
    transform,
    walk,
)
from tcc.ir.graph import Handle, Value
from tcc.ir.index import Var, free_vars, of_atom
from tcc.ir.layout import row_major
from tcc.ir.op import Array
from tcc.ir.types import I8, I32, U8, TensorType, element_count
from tcc.passes.fuse.compose import canonical
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.passes.quantize.zero_points import signed_bytes
from tcc.record import record
from tcc.schedule.nest import multiplied

# Half the range of a byte: what makes an unsigned one signed.
_HALF = 128


def with_signed_operands(placed: Placed, lowers: Callable[[Expr], bool]) -> Placed:
    """`placed` with products of bytes as products of signed bytes, where `lowers` says that the
    kernel can be made."""
    steps: list[ProgramStep] = []
    constants, layouts = dict(placed.graph.constants), dict(placed.layouts)
    for step in placed.steps:
        work = None if step.kernel is None else _Rewriting(placed, step.kernel)
        if work is None or not work.run() or not lowers((made := work.kernel()).expr):
            steps.append(step)
            continue
        steps += (ProgramStep(each) for each in work.sums)
        steps.append(ProgramStep(made))
        constants |= work.constants
        layouts |= {v: row_major(v.type.shape) for each in work.sums for v in each.results}
    graph = replace(placed.graph, constants=constants)
    return replace(placed, graph=graph, steps=tuple(steps), layouts=layouts)


@record
class _Factor:
    """The operand read by `node`, an i8 or u8, less `zero` (None is 0), in i32."""

    node: Read
    zero: Scalar | None


@record
class _Signed:
    """`value`, an i8, plus `offset` (None is 0), in i32."""

    value: Scalar
    offset: Scalar | None


class _Rewriting:
    """One kernel being rewritten: its stages, the operands it gets, and what they are made of."""

    def __init__(self, placed: Placed, old: Kernel) -> None:
        self.placed, self.old = placed, old
        self.operands = list(old.operands)
        self.stages = list(old.expr.stages)
        self.outputs = list(old.expr.outputs)
        self.constants: dict[Value, Handle] = {}
        self.sums: list[Kernel] = []

    def run(self) -> bool:
        """Whether the kernel has products of bytes; they are rewritten."""
        found = [n for n, s in enumerate(self.stages) if _factors(s) is not None]
        for number in found:
            self._rewrite(number)
        return bool(found)

    def kernel(self) -> Kernel:
        params = tuple(v.type for v in self.operands)
        expr = Expr(params, tuple(self.stages), tuple(self.outputs))
        made = _without_unread(replace(self.old, expr=expr, operands=tuple(self.operands)))
        return replace(made, expr=canonical(made.expr))

    # ---- one product ----------------------------------------------------------------------------

    def _rewrite(self, number: int) -> None:
        stage = self.stages[number]
        factors = _factors(stage)
        assert factors is not None
        a, b = map(self._signed, factors)
        product = apply("mul", cast(a.value, I32), cast(b.value, I32))
        self.stages[number] = replace(stage, body=(product,))
        rest = self._rest(stage, a, b)
        if rest is not None:
            self._add(number, stage, rest)

    def _signed(self, factor: _Factor) -> _Signed:
        """A factor as signed bytes and an offset, constants without one if that is possible."""
        node, zero = factor.node, factor.zero
        assert isinstance(node.source, int)
        array = self._array(node)
        if array is not None and array.size:
            point = self._point(node, array, zero)
            moved = None if point is None else signed_bytes(array, point)
            if moved is not None:
                return _Signed(self._constant(node, moved), None)
            if node.dtype is U8:
                halved = (array.astype(np.int32) - _HALF).astype(np.int8)
                return _Signed(self._constant(node, halved), _difference(_HALF, zero))
        if node.dtype is U8:
            half = literal(_HALF, I32)
            return _Signed(cast(apply("sub", cast(node, I32), half), I8), _difference(_HALF, zero))
        return _Signed(node, None if zero is None else _difference(0, zero))

    def _point(self, node: Read, array: Array, zero: Scalar | None) -> Array | None:
        """The zero point of a constant as an array that spreads to it; None where it is none."""
        if zero is None:
            return np.zeros((), np.int32)
        inner = zero.arg if isinstance(zero, Cast) else zero
        point = self._array(inner) if isinstance(inner, Read) and _is_operand(inner) else None
        if point is None or not isinstance(inner, Read):
            return None
        if point.size == 1:
            return point.reshape(()).astype(np.int32)
        along = [n for n, i in enumerate(node.indices) if i is inner.indices[-1]]
        if point.ndim != 1 or len(along) != 1:
            return None
        shape = [-1 if n == along[0] else 1 for n in range(array.ndim)]
        return point.astype(np.int32).reshape(shape)

    def _rest(self, stage: Stage, a: _Signed, b: _Signed) -> Scalar | None:
        """What the offsets add to the sum of products; None for nothing."""
        found: Scalar | None = None
        for one, other in ((a, b), (b, a)):
            if one.offset is None:
                continue
            total = self._total(stage, other.value)
            if one is a and b.offset is not None:
                count = index_value(element_count(tuple(map(extent, stage.reduce))), I32)
                total = apply("add", total, apply("mul", count, b.offset))
            term = apply("mul", one.offset, total)
            found = term if found is None else apply("add", found, term)
        return found

    def _total(self, stage: Stage, factor: Scalar) -> Scalar:
        """The sum of a factor: a constant if it is one, else made by a kernel."""
        (node,) = (n for n in walk(factor) if isinstance(n, Read))
        assert isinstance(node.source, int)
        source = self.operands[node.source]
        own = tuple(v for v in stage.iters if any(v in free_vars(i) for i in node.indices))
        term = cast(transform(factor, lambda n: _of_first(n) if n is node else n), I32)
        expr = canonical(
            Expr((source.type,), (Stage(own, stage.reduce, "sum", (term,)),), (StageRef(0),))
        )
        (made,) = expr.types
        array = self._array(node)
        if array is not None:
            (sums,) = evaluate_expr(expr, [array])
            value = self._new_constant(Value(f"{source.name}.sum", made), np.asarray(sums))
        else:
            value = Value(f"{source.name}.sum", made)
            loc = f"{self.old.loc} (sums of {source.name})"
            self.sums.append(Kernel(expr, (source,), (value,), loc))
        return read(self._operand(value), tuple(map(of_atom, own)), I32)

    def _add(self, number: int, stage: Stage, rest: Scalar) -> None:
        """Adds `rest` to what is read of a stage, and to what of it is a result."""
        ref = StageRef(number)

        def added(node: Read) -> Scalar:
            if node.source != ref:
                return node
            here = dict(zip(stage.iters, node.indices, strict=True))
            return apply("add", node, substitute_indices(rest, here))

        for later in range(number + 1, len(self.stages)):
            old = self.stages[later]
            self.stages[later] = with_reads(old, added)
        if ref in self.outputs:
            total = apply("add", read(ref, stage.at, I32), rest)
            self.stages.append(Stage(stage.iters, (), None, (total,)))
            last = StageRef(len(self.stages) - 1)
            self.outputs = [last if o == ref else o for o in self.outputs]

    # ---- operands -------------------------------------------------------------------------------

    def _array(self, node: Read) -> Array | None:
        assert isinstance(node.source, int)
        value = self.operands[node.source]
        if value in self.constants:
            return self.placed.graph.store.get(self.constants[value])
        return self.placed.graph.constant(value) if value in self.placed.graph.constants else None

    def _constant(self, node: Read, array: Array) -> Read:
        """A read of signed bytes in place of the operand that `node` reads."""
        assert isinstance(node.source, int)
        old = self.operands[node.source]
        value = Value(f"{old.name}.i8", TensorType(I8, old.type.shape))
        self._new_constant(value, array)
        return read(self._operand(value), node.indices, I8)

    def _new_constant(self, value: Value, array: Array) -> Value:
        self.constants[value] = self.placed.graph.store.put(array, value.type.dtype)
        return value

    def _operand(self, value: Value) -> int:
        self.operands.append(value)
        return len(self.operands) - 1


# ---- recognising ---------------------------------------------------------------------------------


def _factors(stage: Stage) -> tuple[_Factor, _Factor] | None:
    """The factors of a sum of products of bytes less zero points, if matrix units need it to be
    another one."""
    found = multiplied(stage)
    if found is None or stage.body[0].dtype is not I32 or found.a is found.b:
        return None
    a, b = _factor(stage, found.a), _factor(stage, found.b)
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
    summed = {v for i in node.indices for v in free_vars(i)} >= set(stage.reduce)
    plain = node.fill is None and not node.indirect and _is_operand(node)
    if node.dtype not in (I8, U8) or not summed or not plain:
        return None
    return None if zero is not None and _varies(zero, stage.reduce) else _Factor(node, zero)


def _varies(scalar: Scalar, loops: Sequence[Var]) -> bool:
    indices = (index for node in walk(scalar) for index in indices_in(node))
    return any(v in loops for i in indices for v in free_vars(i))


def _is_operand(node: Read) -> bool:
    return isinstance(node.source, int)


def _of_first(node: Scalar) -> Scalar:
    """A read of the first operand in place of one of another."""
    assert isinstance(node, Read)
    return read(0, node.indices, node.dtype)


def _difference(value: int, zero: Scalar | None) -> Scalar:
    return literal(value, I32) if zero is None else apply("sub", literal(value, I32), zero)


def _without_unread(kernel: Kernel) -> Kernel:
    """`kernel` without the operands that no stage reads, the others in their order."""
    sources = {r.source for s in kernel.expr.stages for r in reads(s)}
    kept = sorted(source for source in sources if isinstance(source, int))
    numbers = {old: new for new, old in enumerate(kept)}

    def moved(source: Source) -> Source:
        return numbers[source] if isinstance(source, int) else source

    stages = tuple(with_sources(s, moved) for s in kernel.expr.stages)
    expr = Expr(tuple(kernel.expr.params[n] for n in kept), stages, kernel.expr.outputs)
    return replace(kernel, expr=expr, operands=tuple(kernel.operands[n] for n in kept))
