"""Derives the online form of chained reductions, which computes all of them in one streaming loop.

    m = max(j) s[j]                        for K-blocks:  m' = max(m, max(block) s)
    l = sum(j) exp(s[j] - m)        ->       l' = l * exp(m - m') + sum(block) exp(s - m')
    o = sum(j) exp(s[j] - m) * v[j]          o' = o * exp(m - m') + sum(block) exp(s - m') * v

The chain may contain stages that compute values for each j, such as scores and exponentials.  A
K-block is some consecutive j; a tile holds the values of one K-block only.  An accumulator is the
result of a reduction in the loop.  A state is an accumulator that is a maximum or minimum, such as
m.  A sum may join the loop if its terms depend on no state, or on a state for which `rescale` finds
a factor.

Before its first term, a state is the identity of max or min, which is an infinity.  As long as it
is, terms read 0 in its place.  So in a block whose elements are all masked (-inf), the terms
exp(-inf - 0) are zeros, as they are with a finite maximum.

After the streaming loop, readers of a sum multiply it by the rescaling factor h(m, m) for the final
state m.  The factor is 1, or NaN if m is infinite.  So the results equal the results of the split
form, in which each reduction has a loop of its own.  Sums whose terms read 0 in place of an
infinite state already, as in a part of a chain (`chain_parts`), have no such factor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS, Expr, Stage, extent, with_reads
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    apply,
    argument,
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
from tcc.ops.formula import choose
from tcc.passes.fuse.rescale import cleans, rescaling, unless_empty
from tcc.zipped import zip_equal

# The name of the iterator that all stages of a streaming loop share; no other iterator has it.
_LOOP = "stream"


@frozen
class Streamed:
    """An expression whose stages in `stream.stages` share the loop `stream.loop`."""

    expr: Expr
    stream: StreamLoop


@lru_cache(256)
def derive(expr: Expr) -> Streamed | None:
    """Returns the online form of `expr`; None if its reductions have none."""
    for number, stage in enumerate(expr.stages):
        if stage.monoid != "sum" or len(stage.reduce) != 1 or len(stage.body) != 1:
            continue
        for source in _states_read(expr, number):
            loops = _unified(expr, number, source)
            online = None if loops is None else _Derivation(expr, loops).run()
            if online is not None:
                return online
    return None


def above(expr: Expr, roots: Iterable[int]) -> set[int]:
    """Returns the stages, by number, that `roots` depend on, directly or not, and `roots`."""
    stages = set(roots)
    for number in range(len(expr.stages) - 1, -1, -1):
        if number in stages:
            stages.update(s.stage for _, s in reads_of_stages(*expr.stages[number].body))
    return stages


def _states_read(expr: Expr, number: int) -> list[int]:
    """Returns the numbers of the max and min reductions on which the sum `number` depends, and
    whose reduced loop is as long as the sum's."""
    (loop,) = expr.stages[number].reduce
    return [
        n
        for n in sorted(above(expr, [number]) - {number})
        if expr.stages[n].monoid in ("max", "min")
        and len(expr.stages[n].reduce) == 1
        and extent(expr.stages[n].reduce[0]) is extent(loop)
    ]


def _unified(expr: Expr, *seeds: int) -> dict[int, Var] | None:
    """Maps the number of each stage of the streaming loop to the stage's loop that the streaming
    loop replaces.

    The stages are the reductions `seeds`, the stages that these read along their reduced loop, and
    all other reductions that read a stage of the streaming loop along it.  Returns None if a stage
    reads another at an index of its loop other than the loop itself, such as `j + 1`, or if two
    loops of one stage would be replaced.
    """
    loops = {n: expr.stages[n].reduce[0] for n in seeds}
    pending = [*seeds]
    while pending:
        number = pending.pop()
        for node, ref in reads_of_stages(*expr.stages[number].body):
            source = ref.stage
            for result_loop, index in zip_equal(expr.stages[source].iters, node.indices):
                if loops[number] not in free_vars(index):
                    continue
                if (
                    var_of(index) is not loops[number]
                    or loops.setdefault(source, result_loop) is not result_loop
                ):
                    return None
                pending.append(source)
        pending += [n for n in _readers(expr, number, loops) if n not in pending]
    return loops


def _readers(expr: Expr, number: int, loops: dict[int, Var]) -> list[int]:
    """Returns the reductions that join the streaming loop because they reduce along the loop of
    stage `number`; adds their reduced loops to `loops`."""
    stage = expr.stages[number]
    if loops[number] not in stage.iters:
        return []
    at = stage.iters.index(loops[number])
    joining = []
    for later, reader in enumerate(expr.stages):
        for node, source in reads_of_stages(*reader.body):
            var = var_of(node.indices[at]) if source.stage == number else None
            if var is not None and var in reader.reduce and later not in loops:
                loops[later] = var
                joining.append(later)
    return joining


class _Derivation:
    """Checks that the stages of a streaming loop can be streamed, and rewrites them.

    `loops` maps the number of each stage in the streaming loop to its own loop, which becomes the
    streaming loop.
    """

    def __init__(self, expr: Expr, loops: Mapping[int, Var]) -> None:
        self.expr, self.loops = expr, loops
        self.accumulators = [n for n, v in loops.items() if v in expr.stages[n].reduce]
        self.inside = sorted(loops)
        self.before = sorted(above(expr, self.inside).difference(loops))
        self.rescales: dict[int, Rescale] = {}
        # Sums whose terms replace NaN by 0. They get no final factor, even if the state is
        # infinite.
        self.clean: set[int] = set()

    def run(self) -> Streamed | None:
        if (
            not self._is_chain()
            or not all(map(self._follows, self.accumulators))
            or not self.rescales
        ):
            return None
        loop = iterator(_LOOP, extent(self.loops[self.inside[0]]))
        stages = [self._rewritten(n, s, loop) for n, s in enumerate(self.expr.stages)]
        stages, outputs = self._finished(stages)
        rescales = tuple(self.rescales[n] for n in sorted(self.rescales))
        stream_loop = StreamLoop(
            free_vars(loop)[0], tuple(self.before), tuple(self.inside), rescales
        )
        return Streamed(Expr(self.expr.params, tuple(stages), outputs), stream_loop)

    def _is_chain(self) -> bool:
        """Returns True if the stages of the streaming loop depend on each other as a chain.

        Each reduction has one reduced loop.  No stage outside of the loop, and no output, reads
        values for each j.  No stage that runs before the loop reads results of its reductions.
        """
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
        """Returns `scalar` with each read of a pointwise stage of the streaming loop replaced by
        the stage's body."""

        def leaf(node: Scalar) -> Scalar:
            if not isinstance(node, Read) or not isinstance(node.source, StageRef):
                return node
            stage = self.expr.stages[node.source.stage]
            if node.source.stage not in self.loops or stage.monoid is not None:
                return node
            at = dict(zip_equal(stage.iters, node.indices))
            return self._terms(substitute_indices(stage.body[node.source.component], at))

        return transform(scalar, leaf)

    def _follows(self, number: int) -> bool:
        """Returns True if reduction `number` depends on no accumulator, or on an accumulator that
        allows rescaling.

        In the second case, a change of the accumulator multiplies the reduction by a factor, which
        is recorded in `rescales`.
        """
        stage = self.expr.stages[number]
        guarded = [self._terms(s) for s in stage.body]
        bodies = [self._plain(s) for s in guarded]
        if any(self._hides_accumulator(source.stage) for _, source in reads_of_stages(*bodies)):
            return False
        states = self._accumulators_of(bodies)
        if not states:
            return True
        ((state, of), *more) = states
        monoid = self.expr.stages[of].monoid
        if more or stage.monoid != "sum" or len(bodies) != 1 or monoid not in ("max", "min"):
            return False
        factor = rescaling(bodies[0], state)
        if factor is None or self._accumulators_of(map(self._terms, self.expr.stages[of].body)):
            return False
        self.rescales[number] = Rescale(number, state, factor)
        if any(map(cleans, walk(bodies[0]))) or bodies != guarded:
            self.clean.add(number)
        return True

    def _accumulators_of(self, bodies: Iterable[Scalar]) -> list[tuple[Read, int]]:
        """Returns the reads of accumulators in `bodies`, each with the number of the accumulator's
        stage."""
        references = ((node, source.stage) for node, source in reads_of_stages(*bodies))
        return [(node, number) for node, number in references if number in self.accumulators]

    def _hides_accumulator(self, number: int) -> bool:
        """Returns True if stage `number` is a stage of the streaming loop without a reduction that
        depends on an accumulator."""
        if number not in self.loops or number in self.accumulators:
            return False
        return not above(self.expr, [number]).isdisjoint(self.accumulators)

    # ---- rewriting ----------------------------------------------------------------------------

    def _rewritten(self, number: int, stage: Stage, loop: Index) -> Stage:
        """Returns the stage with `loop` in place of its own loop.

        If a state is still the identity of its monoid, the stage's terms read 0 in its place.
        """
        if number not in self.loops:
            return stage
        stage_loop, (new,) = self.loops[number], free_vars(loop)
        states = {r.state.source for r in self.rescales.values()}

        def or_zero(node: Read) -> Scalar:
            if node.source not in states:
                return node
            assert isinstance(node.source, StageRef)
            monoid = self.expr.stages[node.source.stage].monoid
            assert monoid is not None
            return _or_zero(node, monoid)

        iters, reduce = (
            tuple(new if v is stage_loop else v for v in loops)
            for loops in (stage.iters, stage.reduce)
        )
        body = substitute_all(tuple(map(self._plain, stage.body)), {stage_loop: loop})
        return with_reads(replace(stage, iters=iters, reduce=reduce, body=body), or_zero)

    def _plain(self, scalar: Scalar) -> Scalar:
        """Returns `scalar` with a read of a state in place of each `_or_zero` of it."""
        states = (
            (node, self.expr.stages[ref.stage].monoid) for node, ref in reads_of_stages(scalar)
        )
        guarded = ((_or_zero(node, m), node) for node, m in states if m in ("max", "min"))
        return replaced(scalar, dict(guarded))

    def _finished(self, stages: list[Stage]) -> tuple[list[Stage], tuple[StageRef, ...]]:
        """Returns stages and outputs that read rescaled sums multiplied by their final factor.

        For an infinite state, the factor is NaN, and so is the sum, as in the split form.
        """
        outputs = list(self.expr.outputs)
        for number, stage in enumerate(stages):
            if number not in self.loops:
                stages[number] = with_reads(stage, self._final)
        for n, ref in enumerate(outputs):
            if ref.stage in self.rescales.keys() - self.clean:
                sum_stage = stages[ref.stage]
                value = self._final(read(ref, sum_stage.at, sum_stage.body[0].dtype))
                stages.append(Stage(sum_stage.iters, (), None, (value,)))
                outputs[n] = StageRef(len(stages) - 1)
        return stages, tuple(outputs)

    def _final(self, node: Read) -> Scalar:
        """Returns a read of a sum after the streaming loop, times the factor for an unchanged
        state."""
        if not isinstance(node.source, StageRef) or node.source.stage in self.clean:
            return node
        rescale = self.rescales.get(node.source.stage)
        if rescale is None:
            return node
        at = dict(zip_equal(self.expr.stages[node.source.stage].iters, node.indices))
        indices = tuple(substitute(i, at) for i in rescale.state.indices)
        state = read(rescale.state.source, indices, rescale.state.dtype)
        state_twice: dict[Scalar, Scalar] = {argument(n, state.dtype): state for n in range(2)}
        factor = unless_empty(self.loops[node.source.stage], replaced(rescale.factor, state_twice))
        return node * factor


def _or_zero(state: Read, monoid: str) -> Scalar:
    """Returns a read of a state, or 0 as long as the state is the identity of its monoid."""
    (identity,) = MONOIDS[monoid].identity((state.dtype,))
    return choose(apply("eq", state, identity), 0, state)
