"""The rule that set each field of a schedule, recorded while the schedule is chosen.

    core.because("blocks: panel of fewest cycles", stage, columns)

Each rule names itself where it decides. Its name begins with the field that it sets. In a compile
nothing is recorded, because `CoreModel.because` is `unrecorded`.
"""

from collections.abc import Callable
from typing import TypeAlias

from tcc.ir.expr.scalar import Scalars
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage

# A function of (rule, stage, *loops). `rule` is the name of the rule. If the rule sets a field of a
# nest, `stage` is the stage that decides the nest's loops. If the field has an entry for each loop,
# `loops` are the loops whose entries the rule sets.
Because: TypeAlias = Callable[..., None]


def unrecorded(rule: str, stage: GroupStage | None = None, *loops: Var) -> None:
    """Ignores a rule; a compile records none."""


class Reasons:
    """The last rule that set each field of a schedule.

    A key of `rules` is (body, field, loop). `body` is the body of the stage whose nest has the
    field, or None for a field of the schedule. `loop` is the name of the loop whose entry the rule
    sets, or empty for the whole field. Two `Reasons` objects are never equal. So if rules cache
    their results by arguments, a second object still gets its records.
    """

    def __init__(self) -> None:
        # The key has a stage's body, because some rules see the stage without some of its loops.
        self.rules: dict[tuple[Scalars | None, str, str], str] = {}

    def record(self, rule: str, stage: GroupStage | None = None, *loops: Var) -> None:
        """Records a rule (a function of type `Because`)."""
        field, _, _ = rule.partition(":")
        for name in ("", *(v.name for v in loops)):
            self.rules[None if stage is None else stage.body, field, name] = rule
