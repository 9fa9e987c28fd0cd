"""The rules of derivations by name."""

from __future__ import annotations

from types import MappingProxyType

from tcc.passes.derive.rules import bounds, digits, operands, substitute, sums
from tcc.passes.derive.rules.rule import Rule

RULES = MappingProxyType(
    {
        "split": Rule(digits.split, digits.splits, ("loop", "inner", "shift"), True),
        "merge": Rule(digits.merge, digits.merges, ("loop", "other"), False),
        "skew": Rule(substitute.skew, substitute.skews, ("loop", "by", "step"), True),
        "reverse": Rule(substitute.reverse, substitute.reversals, ("loop",), False),
        "nest": Rule(sums.nest, sums.nests, ("loops",), False),
        "solve": Rule(sums.solve, sums.solutions, ("factor", "loop"), True),
        "tighten": Rule(bounds.tighten, bounds.tightenings, ("loop", "low", "high"), False),
        "relax": Rule(bounds.relax, bounds.relaxations, ("loop", "extent"), False),
        "regroup": Rule(operands.regroup, operands.regroupings, ("factor",), True),
        "inline": Rule(operands.inline, operands.regroupings, ("factor",), False),
    }
)
