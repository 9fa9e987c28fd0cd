"""The rules that set the fields of a schedule, recorded while a schedule is chosen.

    blocks oc 64  <-  contraction: panel of the fewest cycles

A rule names itself where it decides: `core.because(name, field, stage, loop)`. A compile records
nothing: its core has `unrecorded`.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tcc.frozen import field_names
from tcc.ir.expr.scalar import Scalars
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage
from tcc.schedule.cpu.schedule import Nest, Schedule

# Takes the name of a rule, the field that it sets, and for a field of a nest the stage that decides
# the nest's loops. A field with an entry for each loop is set at the entries of the loops.
Because: TypeAlias = Callable[..., None]
# The fields with an entry for each loop.
_BY_LOOP = ("units", "blocks")


def unrecorded(rule: str, field: str, stage: GroupStage | None = None, *loops: Var) -> None:
    """Records nothing."""


class Reasons:
    """The rule that set each field last. `record` is a `Because`.

    No cache of rules' results serves two objects: they are compared by identity.
    """

    def __init__(self) -> None:
        # A stage is known by its body: some rules see a stage without some of its loops.
        self._rules: dict[tuple[Scalars | None, str, str], str] = {}

    def record(self, rule: str, field: str, stage: GroupStage | None = None, *loops: Var) -> None:
        """Records that `rule` sets `field`."""
        for name in [v.name for v in loops] if field in _BY_LOOP else [""]:
            self._rules[stage and stage.body, field, name] = rule

    def lines(self, item: Schedule | Nest, stage: GroupStage | None = None) -> Iterator[str]:
        """Yields, for each field that is not empty, its name, its value and its rule.

        `stage` decides the loops of a nest; None for a schedule. A field that no rule has named has
        the rule "unknown".
        """
        for field in field_names(item):
            value = getattr(item, field)
            if not value or field == "nests" or (field == "stages" and len(value) == 1):
                continue
            for name, part in value if field in _BY_LOOP else [("", value)]:
                rule = self._rules.get((stage and stage.body, field, name), "unknown")
                yield f"{field} {name}{' ' * bool(name)}{_text(part)}  <-  {rule}"


def _text(value: object) -> str:
    """Returns the parts of a value side by side."""
    return " ".join(map(_text, value)) if isinstance(value, tuple) else str(value)
