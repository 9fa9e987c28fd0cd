"""Expression: the meaning of a node as tensor algebra.

    expr  = params, stage+, outputs
    stage = iters, reduce iters, monoid?, body            one tensor per body component

    softmax over the last axis of x[r, n]:
      m[i]    = max(k: 0..n)  x[i, k]
      s[i]    = sum(k: 0..n)  exp(x[i, k] - m[i])
      y[i, j] = exp(x[i, j] - m[i]) / s[i]

A monoid is an associative and commutative combination with an identity, such as sum or max.  At
every point of `iters`, the value of a stage is the monoid's combination of `body` over all points
of `reduce`, or `body` itself if the stage has no monoid.  Reductions have no defined order; over an
empty range they give the identity.  Stages read operands of the node and earlier stages.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf, prod
from types import MappingProxyType

from tcc.frozen import frozen
from tcc.ir.expr.scalar import (
    Apply,
    Read,
    Scalar,
    Scalars,
    Source,
    StageRef,
    apply,
    argument,
    children,
    literal,
    read,
    read_from,
    substitute_all,
    transform_all,
    walk,
)
from tcc.ir.index import (
    Index,
    IndexLike,
    Indices,
    Substitution,
    Var,
    Vars,
    as_index,
    as_int,
    const,
    free_vars,
    iterator,
    of_atom,
    substitute,
)
from tcc.ir.types import DType, TensorType, integer_limits
from tcc.zipped import zip_equal


@frozen
class Monoid:
    """An associative, commutative combination of two tuples of n components, with an identity.

    `identity(dtypes)` returns the components of the identity as literals.  `combine(dtypes)`
    returns the components of the combination as scalars, in which `Arg` 0..n-1 is the accumulated
    tuple and `Arg` n..2n-1 the next tuple.  If components are combined independently, `parts` has
    the name of each component's monoid; else it is empty, as for argmax.
    """

    name: str
    components: int
    identity: Callable[[tuple[DType, ...]], Scalars]
    combine: Callable[[tuple[DType, ...]], Scalars]
    parts: tuple[str, ...] = ()


def _limits(dtype: DType) -> tuple[Scalar, Scalar]:
    """Returns the smallest and the largest value of a type as literals; infinities for floats."""
    low, high = (-inf, inf) if dtype.is_float else integer_limits(dtype)
    return literal(low, dtype), literal(high, dtype)


def _lowest(dtype: DType) -> Scalar:
    return _limits(dtype)[0]


def _highest(dtype: DType) -> Scalar:
    return _limits(dtype)[1]


def _simple(*parts: tuple[str, Callable[[DType], Scalar], str]) -> Monoid:
    """Returns the monoid that combines each component independently.

    Each of `parts` describes a component: the name of its monoid, the identity, and the name of the
    scalar function that combines two values.
    """
    count = len(parts)

    def combine(d: tuple[DType, ...]) -> Scalars:
        pairs = ((argument(n, t), argument(n + count, t)) for n, t in enumerate(d))
        return tuple(apply(part[2], *pair) for part, pair in zip_equal(parts, pairs))

    def identity(d: tuple[DType, ...]) -> Scalars:
        return tuple(part[1](t) for part, t in zip_equal(parts, d))

    names = tuple(part[0] for part in parts)
    return Monoid("_".join(names), count, identity, combine, names)


def _arg_extremum(name: str, compare: str, identity: Callable[[DType], Scalar]) -> Monoid:
    """Returns the monoid on (value, position): the better value wins, NaN wins over all values, and
    ties go to the smaller position."""

    def combine(dtypes: tuple[DType, ...]) -> Scalars:
        a, i, b, j = (argument(n, dtypes[n % 2]) for n in range(4))
        better: Scalar = apply(compare, b, a)
        tie: Scalar = apply("eq", a, b)
        if dtypes[0].is_float:
            a_nan, b_nan = apply("is_nan", a), apply("is_nan", b)
            better = (better | b_nan) & apply("not", a_nan)
            tie |= a_nan & b_nan
        take = better | (tie & (j < i))
        return apply("select", take, b, a), apply("select", take, j, i)

    return Monoid(name, 2, lambda d: (identity(d[0]), _highest(d[1])), combine)


_SIMPLE = (
    ("sum", lambda d: literal(0, d), "add"),
    ("prod", lambda d: literal(1, d), "mul"),
    ("max", _lowest, "max"),
    ("min", _highest, "min"),
)
# A tuple of two independent components is a monoid too, such as `max_min`.
MONOIDS = MappingProxyType(
    {
        m.name: m
        for m in (
            *(_simple(*parts) for count in (1, 2) for parts in product(_SIMPLE, repeat=count)),
            _arg_extremum("argmax", "gt", _lowest),
            _arg_extremum("argmin", "lt", _highest),
        )
    }
)


@frozen
class Stage:
    """A definition of one tensor, or of one tensor per component of the monoid.

    `iters` are the iterators of the result, and `reduce` the iterators over which `monoid`
    combines.  `body` has a scalar for each component, or a single scalar without a monoid.  A
    component has its scalar's dtype; the extents of `iters` are its shape.
    """

    iters: Vars
    reduce: Vars
    monoid: str | None
    body: Scalars

    @property
    def loops(self) -> Vars:
        """The iterators of the result, then those of the reduction."""
        return (*self.iters, *self.reduce)

    @property
    def at(self) -> Indices:
        """The index of the element that an iteration computes: the iterators of the result."""
        return tuple(map(of_atom, self.iters))

    @property
    def types(self) -> tuple[TensorType, ...]:
        shape = tuple(extent(v) for v in self.iters)
        return tuple(TensorType(s.dtype, shape) for s in self.body)


@frozen
class Expr:
    """The meaning of a node: a list of stages.

    `params` has the type of each operand of the node, None for an absent optional operand.
    `outputs` are the stages' components that are the node's results, in order.
    """

    params: tuple[TensorType | None, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[StageRef, ...]

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(self.stages[o.stage].types[o.component] for o in self.outputs)


def source_shape(expr: Expr, source: Source) -> Indices:
    """Returns the shape of a parameter or of a stage's component; () for an absent parameter."""
    if isinstance(source, StageRef):
        return expr.stages[source.stage].types[source.component].shape
    param = expr.params[source]
    return () if param is None else param.shape


def extent(var: Var) -> Index:
    """Returns the extent of an iterator; raises ValueError for a size symbol."""
    if var.extent is None:
        raise ValueError(f"{var.name} is a size, not an iterator")
    return var.extent


def nest_size(loops: Iterable[Var]) -> Index:
    """Returns the number of points of a nest of these loops."""
    return prod(map(extent, loops), start=const(1))


def known_extent(var: Var) -> int | None:
    """Returns the extent of an iterator if it is a number; None if it is symbolic."""
    return as_int(extent(var))


class ExprBuilder:
    """Builds an `Expr` in the notation of formulas.

    >>> b = ExprBuilder(x, w)
    >>> i, j = b.iters(m, n)
    >>> k, = b.iters(depth)
    >>> b.sum((i, j), b.read(0, i, k) * ..., over=(k,))
    """

    def __init__(self, *params: TensorType | None) -> None:
        self.params = params
        self._stages: list[Stage] = []
        self._count = 0
        self._bound: dict[Var, Scalar] = {}  # the values of data-dependent indices

    def point(self, tensor: TensorType) -> Indices:
        """Returns a new iterator for each axis of a tensor."""
        return self.iters(*tensor.shape)

    def iters(self, *extents: IndexLike) -> Indices:
        """Returns a new iterator over `[0, extent)` for each extent."""
        first = self._count
        self._count += len(extents)
        return tuple(iterator(f"i{first + n}", size) for n, size in enumerate(extents))

    def read(
        self,
        source: Source,
        *indices: IndexLike,
        fill: bool | int | float | None = None,
    ) -> Read:
        """Returns an element of `source`; the indices may contain results of `position`."""
        bound = (v for v in free_vars(*map(as_index, indices)) if v in self._bound)
        indirect = tuple((v, self._bound[v]) for v in bound)
        return read(source, indices, self._dtype(source), fill=fill, indirect=indirect)

    def position(self, scalar: Scalar, size: IndexLike) -> Index:
        """Returns a data-dependent index in `[0, size)`: a new variable with the value `scalar`."""
        self._count += 1
        index = iterator(f"t{self._count - 1}", size)
        self._bound[free_vars(index)[0]] = scalar
        return index

    def stage(
        self,
        iters: Indices,
        *body: Scalar,
        over: Indices = (),
        monoid: str | None = None,
    ) -> StageRef:
        """Appends a stage and returns its first component.

        `iters` are the iterators of the result, and `over` the iterators that `monoid` reduces.
        Without iterators to reduce, the monoid is left out. `body` has a scalar for each component.
        """
        self._stages.append(Stage(_vars(iters), _vars(over), monoid if over else None, body))
        return StageRef(len(self._stages) - 1)

    def sum(self, iters: Indices, value: Scalar, over: Indices) -> StageRef:
        """Appends and returns a stage that sums `value` over the iterators `over`."""
        return self.stage(iters, value, over=over, monoid="sum")

    def done(self, *outputs: StageRef) -> Expr:
        refs = outputs or (StageRef(len(self._stages) - 1),)
        return Expr(self.params, tuple(self._stages), refs)

    def finish(
        self,
        iters: Indices,
        *body: Scalar,
        over: Indices = (),
        monoid: str | None = None,
    ) -> Expr:
        """Appends the last stage; returns the expression whose result is its first component.

        The arguments mean the same as in `stage`.
        """
        return self.done(self.stage(iters, *body, over=over, monoid=monoid))

    def _dtype(self, source: Source) -> DType:
        if isinstance(source, StageRef):
            return self._stages[source.stage].body[source.component].dtype
        param = self.params[source]
        if param is None:
            raise ValueError(f"operand {source} is absent and cannot be read")
        return param.dtype


def _vars(indices: Indices) -> Vars:
    return tuple(free_vars(as_index(i))[0] for i in indices)


def reads(stage: Stage) -> tuple[Read, ...]:
    """Returns the distinct reads of the stage's body, in evaluation order."""
    return _reads(stage.body)


@lru_cache(4096)
def _reads(body: Scalars) -> tuple[Read, ...]:
    return tuple(s for s in walk(*body) if isinstance(s, Read))


def with_reads(stage: Stage, of: Callable[[Read], Scalar]) -> Stage:
    """Returns `stage` with `of(read)` in place of every read.

    Reads inside a read, in its data-dependent indices, are replaced first.
    """
    new = {node: of(node) for node in reads(stage) if not node.indirect}
    if len(new) == len(reads(stage)) and all(
        node is replacement for node, replacement in new.items()
    ):
        return stage

    def leaf(node: Scalar) -> Scalar:
        return new.get(node) or of(node) if isinstance(node, Read) else node

    return replace(stage, body=transform_all(stage.body, leaf))


def with_sources(stage: Stage, of: Callable[[Source], Source]) -> Stage:
    """Returns `stage` with reads of `of(source)` in place of reads of `source`."""

    def moved(node: Read) -> Read:
        source = of(node.source)
        return node if source == node.source else read_from(node, source)

    return with_reads(stage, moved)


def with_stages(stage: Stage, of: Callable[[StageRef], StageRef]) -> Stage:
    """Returns `stage` with reads of `of(ref)` in place of reads of the earlier stages `ref`."""
    return with_sources(stage, lambda old: of(old) if isinstance(old, StageRef) else old)


def inserted(expr: Expr, at: int, *stages: Stage) -> Expr:
    """Returns `expr` with `stages` inserted before stage `at`; later stages get higher numbers.

    The references in `stages` already use the stage numbers of the result. If `at` is 0, a stage of
    `expr` may read stage -1, which stands for the last of `stages`.
    """

    def later(ref: StageRef) -> StageRef:
        return replace(ref, stage=ref.stage + len(stages) * (ref.stage not in range(at)))

    behind = (with_stages(s, later) for s in expr.stages[at:])
    outputs = tuple(map(later, expr.outputs))
    return Expr(expr.params, (*expr.stages[:at], *stages, *behind), outputs)


def renamed(stage: Stage, mapping: Substitution) -> Stage:
    """Returns `stage` with the variables of its loops and indices replaced by others.

    All variables are replaced at the same time, so two of them may exchange their names.
    """
    iters, reduce = (_vars(tuple(map(mapping.__getitem__, v))) for v in (stage.iters, stage.reduce))
    return replace(stage, iters=iters, reduce=reduce, body=substitute_all(stage.body, mapping))


def substitute_sizes(expr: Expr, sizes: Substitution) -> Expr:
    """Returns `expr` with size symbols replaced in its types, extents and indices."""
    if not sizes:
        return expr

    def moved(stage: Stage) -> Stage:
        new = {v: iterator(v.name, substitute(extent(v), sizes)) for v in stage.loops}
        return renamed(stage, {**sizes, **new})

    params = tuple(
        None if t is None else TensorType(t.dtype, tuple(substitute(d, sizes) for d in t.shape))
        for t in expr.params
    )
    return Expr(params, tuple(map(moved, expr.stages)), expr.outputs)


def unconditional(body: Scalars) -> set[Scalar]:
    """Returns the scalars of a body that are evaluated whether or not the conditions of its
    selects hold."""
    evaluated: set[Scalar] = set()
    stack = list(body)
    while stack:
        scalar = stack.pop()
        if scalar in evaluated:
            continue
        evaluated.add(scalar)
        lazy = isinstance(scalar, Apply) and scalar.function == "select"
        stack.extend(children(scalar)[:1] if lazy else children(scalar))
    return evaluated
