"""Einsum equations of all frameworks.

...ij,...jk  of ranks 3 and 3   ->   Aij,Ajk->Aik
"""

from collections.abc import Sequence

from tcc.frontends.emit import emit
from tcc.frontends.operand import Operand, Refusal
from tcc.zipped import zip_equal


def einsum(text: str, operands: Sequence[Operand]) -> Operand:
    """Adds an einsum of the operands; `text` is an equation in NumPy's notation."""
    equation = explicit_equation(text, [o.rank for o in operands])
    return emit("einsum", *operands, equation=equation)


def explicit_equation(text: str, ranks: Sequence[int]) -> str:
    """Returns the einsum equation with an explicit output and letters in place of '...'."""
    text = text.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise Refusal(f"equation '{text[:80]}' has {len(terms)} terms for {len(ranks)} inputs")
    letters = inputs.replace(",", "").replace("...", "")
    if not all(c.isascii() and c.isalpha() for c in (*letters, *output.replace("...", ""))):
        raise Refusal(f"equation '{text[:80]}' has axes that are no letters")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in text]
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip_equal(terms, ranks)
    ]
    width = max(hidden, default=0)
    if width > len(spare) or min(hidden, default=0) < 0:
        raise Refusal(f"equation '{text[:80]}' does not fit its operands")
    dots = "".join(spare[:width])
    full = [t.replace("...", dots[width - n :]) for t, n in zip_equal(terms, hidden)]
    if not arrow:
        output = ("..." if width else "") + "".join(
            c for c in sorted(set(letters)) if letters.count(c) == 1
        )
    return ",".join(full) + "->" + output.replace("...", dots)
