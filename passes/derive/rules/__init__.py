"""The rules of derivations by name."""

from __future__ import annotations

from types import MappingProxyType

from tcc.passes.derive.rules import bounds, digits, operands, substitute, sums
from tcc.passes.derive.rules.rule import DerivationRule

RULES = MappingProxyType(
    {
        "split": DerivationRule(digits.split, ("loop", "inner", "shift"), True),
        "merge": DerivationRule(digits.merge, ("loop", "other"), False),
        "skew": DerivationRule(substitute.skew, ("loop", "by", "step"), True),
        "reverse": DerivationRule(substitute.reverse, ("loop",), False),
        "nest": DerivationRule(sums.nest, ("loops",), False),
        "solve": DerivationRule(sums.solve, ("factor", "loop"), True),
        "tighten": DerivationRule(bounds.tighten, ("loop", "low", "high"), False),
        "relax": DerivationRule(bounds.relax, ("loop", "extent"), False),
        "regroup": DerivationRule(operands.regroup, ("factor",), True),
        "inline": DerivationRule(operands.inline, ("factor",), False),
    }
)
