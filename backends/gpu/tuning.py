"""Searches for other schedules for kernels that need too many registers or too much shared memory.

    attention, 8 warps, estimated at 160 registers a lane  ->  255, and 1168 bytes of spills
      ->  the next schedules by price, with 3.4 times the estimated registers  ->  no spills

Estimates of registers decide which schedule is compiled first. The compiler's figures then replace
the estimates. If they make a kernel slower than its price, or if values spill, the next best
schedules are compiled, a few at most, and the best of the compiled ones is used. Nothing is timed,
so equal models get equal code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from tcc.backends.gpu.source import CompiledKernel
from tcc.frozen import frozen
from tcc.passes.tile.gpu.plan import BlockChooser, block_schedule
from tcc.passes.tile.plan import Bound
from tcc.schedule.gpu.choose import BlockChoice, ranked
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer, Usage
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks

# How many times a kernel is compiled again at most.
TRIES = 3
# Ratios of predicted times. A kernel that is slower than its price by more than the first is
# compiled again. A kernel without spills is preferred if it is slower than the fastest by at most
# the second.
_WORSE, _SPILLING = 1.05, 2.0

Compile = Callable[[Mapping[int, Bound]], Mapping[int, Sequence[CompiledKernel]]]


def better_schedules(
    bounds: Sequence[Bound], planner: BlockChooser, compiled: Compile
) -> dict[Bound, Bound]:
    """Maps kernels that should have another schedule to their replacements.

    `compiled` compiles kernels for all GPUs; its argument and its result are keyed by kernel
    number.
    """
    searches = {n: _Search(bound, planner) for n, bound in enumerate(bounds)}
    trials = dict(enumerate(bounds))
    for _ in range(TRIES + 1):
        for number, kernels in compiled(trials).items():
            searches[number].add(trials[number], kernels)
        following = ((n, searches[n].next()) for n in trials)
        trials = {n: bound for n, bound in following if bound is not None}
        if not trials:
            break
    choices = ((bound, searches[n].best) for n, bound in enumerate(bounds))
    return {original: better for original, better in choices if better is not original}


@frozen
class _Trial:
    """A compiled kernel, and its price given the resources that it really uses."""

    bound: Bound
    price: BlockPrice

    @property
    def spills(self) -> bool:
        return self.price.usage.private > 0


class _Search:
    """Searches the schedules of a kernel, the cheapest first."""

    def __init__(self, bound: Bound, planner: BlockChooser) -> None:
        self.planner = planner
        self.pricer = BlockPricer(bound.group, planner.profile)
        self.trials: list[_Trial] = []
        # (actual registers) / (estimated registers)
        self.scale = 1.0
        self.fixed = False

    @property
    def best(self) -> Bound:
        """The cheapest compiled kernel without spills.

        A kernel that costs far more than the cheapest of all does not count.
        """
        lowest = min(t.price.seconds for t in self.trials)
        affordable = [t for t in self.trials if t.price.seconds <= _SPILLING * lowest]
        return min(affordable, key=lambda t: (t.spills, t.price.seconds)).bound

    def add(self, bound: Bound, kernels: Sequence[CompiledKernel]) -> None:
        """Records a compiled kernel; `kernels` has its code for each GPU."""
        schedule = block_schedule(bound)
        # Kernels with extra warps for copies have rules of their own and are not searched.
        self.fixed |= any(k.warps != schedule.warps for k in kernels)
        usage = Usage(
            max(k.registers for k in kernels),
            max(k.private for k in kernels),
            max(k.shared for k in kernels),
        )
        built = replace(schedule, stages=min(k.stages for k in kernels))
        self.trials.append(_Trial(bound, self.pricer.price(built, usage)))
        estimate = self.pricer.price(schedule).usage.registers
        self.scale = max(self.scale, (usage.registers + usage.private / 4) / max(1, estimate))

    def next(self) -> Bound | None:
        """Returns the next schedule to compile, or None if no better one is expected."""
        first_trial, last_trial = self.trials[0], self.trials[-1]
        if self.fixed or not (last_trial.spills or self._slow(first_trial)):
            return None
        for choice in self._candidates():
            try:
                return self.planner.scheduled(first_trial.bound.group, choice)
            except NotBlocks:
                continue
        return None

    def _slow(self, trial: _Trial) -> bool:
        return trial.price.seconds > _WORSE * self.pricer.price(block_schedule(trial.bound)).seconds

    def _candidates(self) -> list[BlockSchedule]:
        """Returns schedules that may beat all compiled ones.

        Their prices use scaled estimates of registers. If all compiled kernels spilled, schedules
        that need fewer registers are among them.
        """
        compiled = {block_schedule(t.bound) for t in self.trials}
        choices = ranked(self.trials[0].bound.group, self.planner.profile)
        limit, register_limit = min(t.price.seconds for t in self.trials), 0
        if all(t.spills for t in self.trials):
            limit *= _SPILLING
            register_limit = min(c.price.usage.registers for c in choices if c.schedule in compiled)
        priced = [(self._priced(c), c) for c in choices if c.schedule not in compiled]
        candidates = [
            (seconds, c)
            for seconds, c in priced
            if seconds < limit or (seconds == inf and c.price.usage.registers < register_limit)
        ]
        return [c.schedule for _, c in sorted(candidates, key=lambda pair: pair[0])]

    def _priced(self, choice: BlockChoice) -> float:
        usage, schedule = choice.price.usage, choice.schedule
        scaled = replace(usage, registers=round(usage.registers * self.scale))
        if self.pricer.resident(scaled, schedule) == 0:
            return inf
        return self.pricer.price(schedule, scaled).seconds
