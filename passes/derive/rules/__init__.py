"""The rules of derivations by name."""

from __future__ import annotations

from types import MappingProxyType

from tcc.passes.derive.rules import bounds, digits, operands, substitute, sums
from tcc.passes.derive.rules.rule import DerivationRule

RULES = MappingProxyType(
    {
        "split": DerivationRule(digits.split, digits.splits, ("loop", "inner", "shift"), True),
        "merge": DerivationRule(digits.merge, digits.merges, ("loop", "other"), False),
        "skew": DerivationRule(substitute.skew, substitute.skews, ("loop", "by", "step"), True),
        "reverse": DerivationRule(substitute.reverse, substitute.reversals, ("loop",), False),
        "nest": DerivationRule(sums.nest, sums.nests, ("loops",), False),
        "solve": DerivationRule(sums.solve, sums.solutions, ("factor", "loop"), True),
        "tighten": DerivationRule(
            bounds.tighten, bounds.tightenings, ("loop", "low", "high"), False
        ),
        "relax": DerivationRule(bounds.relax, bounds.relaxations, ("loop", "extent"), False),
        "regroup": DerivationRule(operands.regroup, operands.regroupings, ("factor",), True),
        "inline": DerivationRule(operands.inline, operands.regroupings, ("factor",), False),
    }
)
