"""The limit on the length of formulas."""

from tcc.errors import UserError

_MOST_TERMS = 1 << 14  # the most terms of a product of sums; real models have some dozens


class LargeFormulaError(UserError, ValueError):
    """A formula of sizes has more terms than any use of it could take."""


def require_short(a: int, b: int) -> None:
    """Raises LargeFormulaError for a product of sums of `a` and `b` terms that is too long."""
    if a * b > _MOST_TERMS:
        raise LargeFormulaError(
            "a size of the model is too long a formula",
            why=f"it multiplies sums of {a} and {b} terms",
            hint="give the model sizes that are numbers (--input NAME=SHAPE)",
        )
