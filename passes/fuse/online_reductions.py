"""Derives the online form of chained reductions: all of them in one walk along a loop.

    m = max(j) s[j]                        for runs of j:  m' = max(m, max(run) s)
    l = sum(j) exp(s[j] - m)        ->       l' = l * exp(m - m') + sum(run) exp(s - m')
    o = sum(j) exp(s[j] - m) * v[j]          o' = o * exp(m - m') + sum(run) exp(s - m') * v

The chain may hold stages that make values for each j (scores, exponentials): a unit then holds
those of a run only.  A sum may join if its terms depend on one earlier maximum or minimum of the
walk in such a way that `rescale` finds a factor, or on none.

While nothing has been seen, the state is its identity, an infinity; terms take 0 for it then, so
that runs that are masked throughout leave zeros, as terms of -inf do beside a finite maximum.  What
comes after the streaming loop multiplies by the factor of no change: 1, or NaN where the final
state is infinite, as in the split form.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from tcc.ir.expr import MONOIDS, Expr, Stage, extent, with_reads
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    apply,
    argument,
    literal,
    read,
    reads_of_stages,
    replaced,
    substitute_all,
    substitute_indices,
    transform,
    walk,
)
from tcc.ir.index import Index, Var, free_vars, iterator, substitute, var_of
from tcc.ir.tile.group import Rescale, StreamLoop
from tcc.passes.fuse.rescale import cleans, rescaling, unless_empty
from tcc.record import record

# The iterator that all stages of a streaming loop share; no other has such a name.
_LOOP = "stream"


@record
class Streamed:
    """An expression whose stages in `walk.stages` share the loop `walk.loop`."""

    expr: Expr
    stream: StreamLoop


@lru_cache(maxsize=256)
def derive(expr: Expr) -> Streamed | None:
    """The online form of `expr`; None where its reductions do not allow it."""
    for number, stage in enumerate(expr.stages):
        if stage.monoid != "sum" or len(stage.reduce) != 1 or len(stage.body) != 1:
            continue
        for source in _states_read(expr, number):
            loops = _unified(expr, number, source)
            found = None if loops is None else _Derivation(expr, loops).run()
            if found is not None:
                return found
    return None


def above(expr: Expr, roots: Iterable[int]) -> set[int]:
    """The stages that `roots` are made of, themselves included."""
    found = set(roots)
    for number in range(len(expr.stages) - 1, -1, -1):
        if number in found:
            found.update(s.stage for _, s in reads_of_stages(*expr.stages[number].body))
    return found


def _states_read(expr: Expr, number: int) -> list[int]:
    """Earlier maxima and minima over a loop as long as that of the sum, which it is made of."""
    (own,) = expr.stages[number].reduce
    return [
        n
        for n in sorted(above(expr, [number]) - {number})
        if expr.stages[n].monoid in ("max", "min")
        and len(expr.stages[n].reduce) == 1
        and extent(expr.stages[n].reduce[0]) is extent(own)
    ]


def _unified(expr: Expr, *seeds: int) -> dict[int, Var] | None:
    """For each stage that has it, the loop along which the reductions `seeds` run."""
    loops = {n: expr.stages[n].reduce[0] for n in seeds}
    pending = [*seeds]
    while pending:
        number = pending.pop()
        for node, ref in reads_of_stages(*expr.stages[number].body):
            source = ref.stage
            for own, index in zip(expr.stages[source].iters, node.indices, strict=True):
                if loops[number] not in free_vars(index):
                    continue
                if var_of(index) is not loops[number] or loops.setdefault(source, own) is not own:
                    return None
                pending.append(source)
        pending += [n for n in _readers(expr, number, loops) if n not in pending]
    return loops


def _readers(expr: Expr, number: int, loops: dict[int, Var]) -> list[int]:
    """Reductions that read a stage of the streaming loop all along the loop; they come too."""
    stage = expr.stages[number]
    if loops[number] not in stage.iters:
        return []
    at = stage.iters.index(loops[number])
    found = []
    for later, reader in enumerate(expr.stages):
        for node, source in reads_of_stages(*reader.body):
            var = var_of(node.indices[at]) if source.stage == number else None
            if var is not None and var in reader.reduce and later not in loops:
                loops[later] = var
                found.append(later)
    return found


class _Derivation:
    """Checks that the stages with one of `loops` can be walked, and rewrites them."""

    def __init__(self, expr: Expr, loops: Mapping[int, Var]) -> None:
        self.expr, self.loops = expr, loops
        self.accumulators = [n for n, v in loops.items() if v in expr.stages[n].reduce]
        self.inside = sorted(loops)
        self.before = sorted(above(expr, self.inside).difference(loops))
        self.found: dict[int, Rescale] = {}
        self.clean: set[int] = set()  # sums that take 0 for NaN, where states are infinite too

    def run(self) -> Streamed | None:
        if not self._is_chain() or not all(map(self._follows, self.accumulators)) or not self.found:
            return None
        loop = iterator(_LOOP, extent(self.loops[self.inside[0]]))
        stages = [self._rewritten(n, s, loop) for n, s in enumerate(self.expr.stages)]
        stages, outputs = self._finished(stages)
        rescales = tuple(self.found[n] for n in sorted(self.found))
        own = StreamLoop(free_vars(loop)[0], tuple(self.before), tuple(self.inside), rescales)
        return Streamed(Expr(self.expr.params, tuple(stages), outputs), own)

    def _is_chain(self) -> bool:
        """Whether nothing but the streaming loop needs values for each j, and nothing before needs
        totals."""
        for n in self.inside:
            stage = self.expr.stages[n]
            if n in self.accumulators and (len(stage.reduce) != 1 or stage.monoid is None):
                return False
            if n not in self.accumulators and any(o.stage == n for o in self.expr.outputs):
                return False
        return not any(
            source.stage in self.loops
            and (n in self.before or source.stage not in self.accumulators)
            for n, stage in enumerate(self.expr.stages)
            for _, source in reads_of_stages(*stage.body)
            if n not in self.loops
        )

    def _terms(self, scalar: Scalar) -> Scalar:
        """`scalar` with the pointwise stages of the streaming loop it reads put in."""

        def leaf(node: Scalar) -> Scalar:
            if not isinstance(node, Read) or not isinstance(node.source, StageRef):
                return node
            stage = self.expr.stages[node.source.stage]
            if node.source.stage not in self.loops or stage.monoid is not None:
                return node
            at = dict(zip(stage.iters, node.indices, strict=True))
            return self._terms(substitute_indices(stage.body[node.source.component], at))

        return transform(scalar, leaf)

    def _follows(self, number: int) -> bool:
        """Whether a reduction can go on when a total it depends on changes."""
        stage = self.expr.stages[number]
        bodies = [self._terms(s) for s in stage.body]
        if any(self._hides_total(source.stage) for _, source in reads_of_stages(*bodies)):
            return False
        states = self._totals_of(bodies)
        if not states:
            return True
        ((state, of), *more) = states
        monoid = self.expr.stages[of].monoid
        if more or stage.monoid != "sum" or len(bodies) != 1 or monoid not in ("max", "min"):
            return False
        factor = rescaling(bodies[0], state)
        if factor is None or self._totals_of(map(self._terms, self.expr.stages[of].body)):
            return False
        self.found[number] = Rescale(number, state, factor)
        if any(map(cleans, walk(bodies[0]))):
            self.clean.add(number)
        return True

    def _totals_of(self, bodies: Iterable[Scalar]) -> list[tuple[Read, int]]:
        """The reads of totals in `bodies`, with the number of each total."""
        found = ((node, source.stage) for node, source in reads_of_stages(*bodies))
        return [(node, number) for node, number in found if number in self.accumulators]

    def _hides_total(self, number: int) -> bool:
        """Whether a stage of the streaming loop, with sums of its own, reads totals."""
        if number not in self.loops or number in self.accumulators:
            return False
        return not above(self.expr, [number]).isdisjoint(self.accumulators)

    # ---- rewriting ----------------------------------------------------------------------------

    def _rewritten(self, number: int, stage: Stage, loop: Index) -> Stage:
        """The stage with the loop under its common name, and terms that take 0 for no state."""
        if number not in self.loops:
            return stage
        own, (new,) = self.loops[number], free_vars(loop)
        states = {r.state.source for r in self.found.values()}

        def known(node: Read) -> Scalar:
            if node.source not in states:
                return node
            assert isinstance(node.source, StageRef)
            monoid = self.expr.stages[node.source.stage].monoid
            assert monoid is not None
            (none,) = MONOIDS[monoid].identity((node.dtype,))
            return apply("select", apply("eq", node, none), literal(0, node.dtype), node)

        iters, reduce = (
            tuple(new if v is own else v for v in loops) for loops in (stage.iters, stage.reduce)
        )
        body = substitute_all(stage.body, {own: loop})
        return with_reads(replace(stage, iters=iters, reduce=reduce, body=body), known)

    def _finished(self, stages: list[Stage]) -> tuple[list[Stage], tuple[StageRef, ...]]:
        """Results and readers after the streaming loop see sums of infinite states as in the split
        form."""

        outputs = list(self.expr.outputs)
        for number, stage in enumerate(stages):
            if number not in self.loops:
                stages[number] = with_reads(stage, self._final)
        for n, ref in enumerate(outputs):
            if ref.stage in self.found:
                own = stages[ref.stage]
                value = self._final(read(ref, own.at, own.body[0].dtype))
                stages.append(Stage(own.iters, (), None, (value,)))
                outputs[n] = StageRef(len(stages) - 1)
        return stages, tuple(outputs)

    def _final(self, node: Read) -> Scalar:
        """A sum after the streaming loop times the factor of no change."""
        if not isinstance(node.source, StageRef) or node.source.stage in self.clean:
            return node
        found = self.found.get(node.source.stage)
        if found is None:
            return node
        own = self.expr.stages[node.source.stage]
        at = dict(zip(own.iters, node.indices, strict=True))
        indices = tuple(substitute(i, at) for i in found.state.indices)
        state = read(found.state.source, indices, found.state.dtype)
        both: dict[Scalar, Scalar] = {argument(n, state.dtype): state for n in range(2)}
        factor = unless_empty(self.loops[node.source.stage], replaced(found.factor, both))
        return apply("mul", node, factor)
