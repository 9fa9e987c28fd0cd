"""Other schedules for kernels that compilers could not fit into registers and shared memory.

    attention, 8 warps, thought to take 160 registers a lane  ->  255 and 1168 bytes beside them
      ->  the next schedules by price, with 3.4 times the registers as were thought  ->  none beside

Estimates of registers decide what is compiled first.  What the compilers then say is put in their
place: where that makes a kernel slower than its price, or values do not stay in registers, the next
best schedules are compiled, a few at most, and the best of those that were compiled is kept.
Nothing is timed, so equal models get equal code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from tcc.backends.gpu.source import CompiledKernel
from tcc.passes.tile.gpu.plan import BlockPlanner, block_schedule
from tcc.passes.tile.plan import Bound
from tcc.record import record
from tcc.schedule.gpu.choose import BlockChoice, ranked
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer, Usage
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks

# How often a kernel is compiled again, at most.
TRIES = 3
# A kernel this much slower than its price is worth another try, and one this much slower than what
# leaves registers is worth taking instead.
_WORSE, _SPILLING = 1.05, 2.0

Compile = Callable[[Mapping[int, Bound]], Mapping[int, Sequence[CompiledKernel]]]


def better_schedules(
    bounds: Sequence[Bound], planner: BlockPlanner, compiled: Compile
) -> dict[Bound, Bound]:
    """For kernels that should be others: these.

    `compiled` compiles kernels under their numbers, each for all GPUs.
    """
    searches = {n: _Search(bound, planner) for n, bound in enumerate(bounds)}
    trials = dict(enumerate(bounds))
    for _ in range(TRIES + 1):
        for number, kernels in compiled(trials).items():
            searches[number].judge(trials[number], kernels)
        found = ((n, searches[n].next()) for n in trials)
        trials = {n: bound for n, bound in found if bound is not None}
        if not trials:
            break
    best = ((bound, searches[n].best) for n, bound in enumerate(bounds))
    return {old: new for old, new in best if new is not old}


@record
class _Tried:
    """A compiled kernel and its price with what it really takes."""

    bound: Bound
    price: BlockPrice

    @property
    def spills(self) -> bool:
        return self.price.usage.private > 0


class _Search:
    """The schedules of one kernel, from the cheapest on."""

    def __init__(self, bound: Bound, planner: BlockPlanner) -> None:
        self.planner = planner
        self.pricer = BlockPricer(bound.group, planner.profile)
        self.tried: list[_Tried] = []
        # Real registers to estimated ones.
        self.scale = 1.0
        self.fixed = False

    @property
    def best(self) -> Bound:
        """Of what was compiled: the cheapest that keeps its values in registers, but for those
        that cost far too much."""
        least = min(t.price.seconds for t in self.tried)
        fair = [t for t in self.tried if t.price.seconds <= _SPILLING * least]
        return min(fair, key=lambda t: (t.spills, t.price.seconds)).bound

    def judge(self, bound: Bound, kernels: Sequence[CompiledKernel]) -> None:
        """Takes note of a compiled kernel."""
        schedule = block_schedule(bound)
        # Kernels with warps of their own for copies are made by their own rules.
        self.fixed |= any(k.warps != schedule.warps for k in kernels)
        usage = Usage(
            max(k.registers for k in kernels),
            max(k.private for k in kernels),
            max(k.shared for k in kernels),
        )
        built = replace(schedule, stages=min(k.stages for k in kernels))
        self.tried.append(_Tried(bound, self.pricer.price(built, usage)))
        thought = self.pricer.price(schedule).usage.registers
        self.scale = max(self.scale, (usage.registers + usage.private / 4) / max(1, thought))

    def next(self) -> Bound | None:
        """The next schedule to compile; None where nothing better is in sight."""
        first, last = self.tried[0], self.tried[-1]
        if self.fixed or not (last.spills or self._slow(first)):
            return None
        for choice in self._left():
            try:
                return self.planner.scheduled(first.bound.group, choice)
            except NotBlocks:
                continue
        return None

    def _slow(self, tried: _Tried) -> bool:
        return tried.price.seconds > _WORSE * self.pricer.price(block_schedule(tried.bound)).seconds

    def _left(self) -> list[BlockSchedule]:
        """What may be better than all that was compiled, priced with the registers that were seen.

        Where nothing kept its values in registers, that is what asks for fewer of them.
        """
        done = {block_schedule(t.bound) for t in self.tried}
        choices = ranked(self.tried[0].bound.group, self.planner.profile)
        least, few = min(t.price.seconds for t in self.tried), 0
        if all(t.spills for t in self.tried):
            least *= _SPILLING
            few = min(c.price.usage.registers for c in choices if c.schedule in done)
        priced = [(self._priced(c), c) for c in choices if c.schedule not in done]
        kept = [
            (seconds, c)
            for seconds, c in priced
            if seconds < least or (seconds == inf and c.price.usage.registers < few)
        ]
        return [c.schedule for _, c in sorted(kept, key=lambda each: each[0])]

    def _priced(self, choice: BlockChoice) -> float:
        usage, schedule = choice.price.usage, choice.schedule
        scaled = replace(usage, registers=round(usage.registers * self.scale))
        if self.pricer.resident(scaled, schedule) == 0:
            return inf
        return self.pricer.price(schedule, scaled).seconds
