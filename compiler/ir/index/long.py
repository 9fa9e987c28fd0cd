"""The limit on the number of terms of a formula."""

from tcc.errors import UserError

_MOST_TERMS = 1 << 14  # the term limit of products; models have some dozens


class LargeFormulaError(UserError, ValueError):
    """A model computes a size by a formula with too many terms."""


def require_short(a: int, b: int) -> None:
    """Raises LargeFormulaError if a sum of `a` terms times a sum of `b` terms is too long."""
    if a * b > _MOST_TERMS:
        raise LargeFormulaError(
            "a size of the model is too long a formula",
            why=f"it multiplies sums of {a} and {b} terms",
            hint="give the model sizes that are numbers (--input NAME=SHAPE)",
        )
