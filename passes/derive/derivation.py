"""Derivations as text: a chain of steps, each a rule, a stage and arguments, which replays.

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


class DerivationStep(NamedTuple):
    """A rule applied to a stage, which is numbered as it is before the step."""

    rule: str
    stage: int
    arguments: Arguments

    def __str__(self) -> str:
        names = RULES[self.rule].names
        if len(names) == 1:
            arguments = [f"{names[0]}={','.join(map(str, self.arguments))}"]
        else:
            arguments = [f"{n}={a}" for n, a in zip(names, self.arguments, strict=True)]
        return " ".join((self.rule, f"stage={self.stage}", *arguments))


def parse_step(text: str) -> DerivationStep:
    """Returns the step that `text` writes.  Raises ValueError for a text that is no step."""
    rule, numbers = text.partition(" ")[0], tuple(map(int, findall(r"-?\d+", text)))
    step = DerivationStep(rule, numbers[0], numbers[1:]) if rule in RULES and numbers else None
    if step is None or str(step) != text:
        raise ValueError("the text is no rule with its arguments")
    return step


def applied(region: Region, step: DerivationStep) -> Region:
    """Returns the region after a step.  Raises Refused where the rule does not hold."""
    return RULES[step.rule].apply(region, step.stage, *step.arguments)


def replay(region: Region, chain: Iterable[str]) -> Region:
    """Returns the region after the steps of a chain.  Raises UserError that names the
    failing step."""
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
