"""The candidates of a CPU kernel: other knobs, other variants of its schedule, other forms."""

from collections.abc import Iterator
from dataclasses import field

from tcc.frozen import entity
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.cpu.plan import CoreChooser, Structure
from tcc.passes.tile.plan import KernelKey
from tcc.schedule.alternatives import number
from tcc.schedule.cpu.candidate_space import beside, knobs_beside
from tcc.schedule.cpu.candidates import measured_knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.kernel_choice import read_kernel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.loop_positions import by_name
from tcc.tune.candidates import MOST_EXPENSIVE, KernelCandidate


@entity
class KernelSpace:
    """The candidates of the kernel `_key`, as texts of `CoreKernel`, with their prices."""

    _planner: CoreChooser
    _key: KernelKey
    _analytic: str
    _structures: dict[object, Structure] = field(default_factory=dict)

    def near(self, text: str) -> list[KernelCandidate]:
        """Returns the candidates that differ from the candidate `text` in one respect.

        It is a knob, a dimension of the schedule (`tcc.schedule.cpu.candidate_space`), or the form
        of the kernel. Candidates that are priced far above the analytic choice are left out.
        """
        limit = MOST_EXPENSIVE * self.price_of(self._analytic)
        schedules: dict[tuple[int, Schedule], KernelCandidate] = {}
        for structure, knobs, group, schedule in self._beside(text):
            if (id(group), schedule) in schedules:
                continue
            price = self._price(group, schedule)
            if price <= limit:
                candidate = KernelCandidate(structure.text(knobs, schedule), price)
                schedules[id(group), schedule] = candidate
        return list(schedules.values())

    def price_of(self, text: str) -> float:
        """Returns the predicted seconds of the candidate `text`."""
        return self._price(*self._read(text)[2:])

    def _beside(self, text: str) -> Iterator[tuple[Structure, Knobs, TileGroup, Schedule]]:
        structure, knobs, group, schedule = self._read(text)
        for variant in beside(group, schedule):
            yield structure, knobs, group, variant
        for other_knobs in knobs_beside(knobs, measured_knobs_of(group)):
            yield structure, other_knobs, *structure.with_knobs(other_knobs)
        for other in self._forms().values():
            if other is not structure:
                yield other, Knobs(), *other.with_knobs(Knobs())

    def _read(self, text: str) -> tuple[Structure, Knobs, TileGroup, Schedule]:
        kernel = read_kernel(text, self._planner.core)
        structure = self._forms()[kernel.form]
        group, _ = structure.with_knobs(kernel.knobs)
        return structure, kernel.knobs, group, by_name(kernel.schedule, group)

    def _forms(self) -> dict[object, Structure]:
        if not self._structures:
            for core in self._planner.legal_forms_of(self._key):
                structure = Structure(self._key, core)
                self._structures.setdefault(structure.form, structure)
        return self._structures

    def _price(self, group: TileGroup, schedule: Schedule) -> float:
        return number(self._planner.price(group, schedule))
