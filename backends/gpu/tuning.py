"""Searches for other schedules for kernels that need too many registers or too much shared memory.

    attention, 8 warps: the estimate is 160 registers a lane
      compiled: 255 registers and 1168 bytes (292 registers) of spills, 3.4 times the estimate
      all estimates are multiplied by 3.4; the cheapest schedule is then another one
      compiled: no spills

Estimates of registers decide which schedule is compiled first. The compiler's figures then replace
the estimates. If they make a kernel slower than its price, or if values spill, the next best
schedules are compiled, a few at most, and the best of the compiled ones is used. Nothing is timed,
so equal models get equal code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tcc.backends.gpu.source import CompiledKernel
from tcc.frozen import frozen
from tcc.passes.tile.gpu.plan import BlockChooser, block_schedule
from tcc.passes.tile.plan import Bound
from tcc.schedule.alternatives import IMPOSSIBLE, Alternative, Seconds, in_order, saves
from tcc.schedule.gpu.choose import BlockChoice, ranked
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer, Usage
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks
from tcc.schedule.margins import MARGINS

# How many times a kernel is compiled again at most.
TRIES = 3
# `_WORSE`: a kernel is compiled again if its price with the compiler's figures exceeds its
# estimated price by more than this margin. `_SPILLING`: a kernel without spills is preferred,
# unless a kernel with spills is cheaper by more than this margin.
_WORSE, _SPILLING = MARGINS["compiled again"], MARGINS["spill"]

Compile = Callable[[Mapping[int, Bound]], Mapping[int, Sequence[CompiledKernel]]]


def better_schedules(
    bounds: Sequence[Bound], planner: BlockChooser, compiled: Compile
) -> dict[Bound, Bound]:
    """Maps each kernel that should have another schedule to its replacement.

    `compiled` compiles kernels for all GPUs. It maps a dict from kernel number to kernel to a dict
    from kernel number to the kernel's code for each GPU.
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
        # The largest ratio of actual registers, with spilled ones, to estimated registers.
        self.scale = 1.0
        self.fixed = bound in planner.pinned

    @property
    def best(self) -> Bound:
        """The cheapest compiled kernel without spills.

        It is the cheapest of all compiled kernels, if those without spills cost far more.
        """
        ordered = self._in_order()
        affordable = (t for t in ordered if not saves(ordered[0].price, t.price, _SPILLING))
        return min(affordable, key=lambda t: t.replacement.spills).replacement.bound

    def _in_order(self) -> list[Alternative[_Trial]]:
        """Returns the compiled kernels, the cheapest first."""
        return in_order(Alternative(trial, trial.price.seconds) for trial in self.trials)

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
        expected = self.pricer.price(block_schedule(first_trial.bound)).seconds
        is_slow = saves(expected, first_trial.price.seconds, _WORSE)
        if self.fixed or not (last_trial.spills or is_slow):
            return None
        for choice in self._candidates():
            try:
                return self.planner.scheduled(first_trial.bound.group, choice)
            except NotBlocks:
                continue
        return None

    def _candidates(self) -> list[BlockSchedule]:
        """Returns schedules that may beat all compiled ones.

        Their prices use scaled estimates of registers. If all compiled kernels spilled, schedules
        that need fewer registers are among them.
        """
        compiled = {block_schedule(t.bound) for t in self.trials}
        choices = ranked(self.trials[0].bound.group, self.planner.profile)
        limit, register_limit = self._in_order()[0].price, 0
        if all(t.spills for t in self.trials):
            limit /= 1 - _SPILLING.saves
            register_limit = min(c.price.usage.registers for c in choices if c.schedule in compiled)
        others = (c for c in choices if c.schedule not in compiled)
        return [
            a.replacement.schedule
            for a in in_order(Alternative(c, self._priced(c)) for c in others)
            if saves(a.price, limit)
            or (a.price == IMPOSSIBLE and a.replacement.price.usage.registers < register_limit)
        ]

    def _priced(self, choice: BlockChoice) -> Seconds:
        usage, schedule = choice.price.usage, choice.schedule
        scaled = replace(usage, registers=round(usage.registers * self.scale))
        if self.pricer.resident(scaled, schedule) == 0:
            return IMPOSSIBLE
        return self.pricer.price(schedule, scaled).seconds
