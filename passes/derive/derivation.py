"""Writes derivations as text, and replays them.

A derivation is a chain of steps.  Each step is a line with a rule, a stage and arguments:

    nest stage=0 loops=5,6
    skew stage=0 loop=2 by=4 step=1
"""

from __future__ import annotations

from collections.abc import Iterable
from re import findall
from typing import NamedTuple

from tcc.errors import UserError
from tcc.ir.region import Region
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.rule import Arguments
from tcc.zipped import zip_equal


class DerivationStep(NamedTuple):
    """The application of a rule to a stage of a region.

    `stage` is the index of the stage in the region before the step.
    """

    rule: str
    stage: int
    arguments: Arguments

    def __str__(self) -> str:
        names = RULES[self.rule].names
        if len(names) == 1:
            arguments = [f"{names[0]}={','.join(map(str, self.arguments))}"]
        else:
            arguments = [f"{n}={a}" for n, a in zip_equal(names, self.arguments)]
        return " ".join((self.rule, f"stage={self.stage}", *arguments))


def parse_step(text: str) -> DerivationStep:
    """Returns the step that `text` describes.  Raises ValueError for a text that is not a step."""
    rule, numbers = text.partition(" ")[0], tuple(map(int, findall(r"-?\d+", text)))
    step = DerivationStep(rule, numbers[0], numbers[1:]) if rule in RULES and numbers else None
    if step is None or str(step) != text:
        raise ValueError("the text is no rule with its arguments")
    return step


def applied(region: Region, step: DerivationStep) -> Region:
    """Returns the region after a step.  Raises Refused if the rule's conditions do not hold."""
    return RULES[step.rule].apply(region, step.stage, *step.arguments)


def replay(region: Region, chain: Iterable[str]) -> Region:
    """Returns the region after all steps of a chain.

    Raises UserError, with the number and text of the step, for a step that cannot be applied.
    """
    for number, text in enumerate(chain):
        try:
            region = applied(region, parse_step(text))
        except (ValueError, TypeError) as error:
            raise UserError(
                "a derivation does not replay",
                where=f"step {number + 1}: {text}",
                why=error,
                hint="replay the chain on the region that it was derived from, by this version",
            ) from error
    return region
