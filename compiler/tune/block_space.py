"""The candidates of a GPU kernel: the schedules of each of its forms that prices compare."""

from tcc.passes.tile.gpu.plan import BlockChooser, kernel_text
from tcc.passes.tile.plan import KernelKey
from tcc.schedule.alternatives import IMPOSSIBLE, number
from tcc.schedule.gpu.choose import choose_blocks, ranked
from tcc.schedule.gpu.schedule import NotBlocks
from tcc.tune.candidates import MOST_EXPENSIVE, KernelCandidate


class BlockSpace:
    """The candidates of the kernel `key`, as texts of `BlockKernel`, with their prices."""

    def __init__(self, planner: BlockChooser, key: KernelKey, analytic: str) -> None:
        self._prices: dict[str, float] = {}
        for packing in planner.packings(key):
            group = packing.group
            try:
                schedules = [c.schedule for c in ranked(group, planner.profile)]
                schedules.append(choose_blocks(group, planner.profile))
            except NotBlocks:
                continue
            for schedule in schedules:
                price = planner.price(group, schedule)
                if price != IMPOSSIBLE:
                    text = kernel_text(group, packing.form, schedule)
                    self._prices[text] = number(price)
        self._limit = MOST_EXPENSIVE * self._prices.get(
            analytic, min(self._prices.values(), default=0.0)
        )

    def near(self, text: str) -> list[KernelCandidate]:
        """Returns all candidates whose price is not far above that of the analytic choice.

        They are few, and each new number of warps changes the best blocks.
        """
        pairs = self._prices.items()
        return [KernelCandidate(t, p) for t, p in pairs if p <= self._limit and t != text]
