"""The rules that set the fields of a schedule, recorded while a schedule is chosen.

    core.because("blocks: panel of fewest cycles", stage, columns)

A rule names itself where it decides. Its name begins with the field that it sets. A compile records
nothing: its core has `unrecorded`.
"""

from collections.abc import Callable
from typing import TypeAlias

from tcc.ir.expr.scalar import Scalars
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage

# The arguments are the name of a rule, a stage and loops. The stage decides the loops of a nest,
# for a field of a nest. The loops are those whose entries the rule sets, for a field with an entry
# for each loop.
Because: TypeAlias = Callable[..., None]


def unrecorded(rule: str, stage: GroupStage | None = None, *loops: Var) -> None:
    """Records nothing."""


class Reasons:
    """The rule that set each field last.

    The keys of `rules` are the body of the stage (None: a field of the schedule), the field, and
    the loop's name (empty: the whole field). Objects are compared by identity, so no cache of a
    rule's results serves two of them.
    """

    def __init__(self) -> None:
        # Some rules see a stage without some of its loops, but always with its body.
        self.rules: dict[tuple[Scalars | None, str, str], str] = {}

    def record(self, rule: str, stage: GroupStage | None = None, *loops: Var) -> None:
        """Records a rule that sets a field; it is a `Because`."""
        field, _, _ = rule.partition(":")
        for name in ("", *(v.name for v in loops)):
            self.rules[None if stage is None else stage.body, field, name] = rule
