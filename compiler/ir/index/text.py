"""The text of index expressions; terms are sorted by it."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcc.ir.index import Index


# The longest text of an atom.  Such formulas are rare, because the importer replaces long formulas
# by symbols (`tcc.frontends.scope`).
_LONGEST = 1 << 13


@lru_cache(1 << 16)
def sum_text(index: Index) -> str:
    """Returns `2*a*b-c+3` for the terms `((a, b), 2), ((c,), -1)` and the constant 3."""
    text, const = "", index.const
    for factors, coeff in index.terms:
        monomial = "*".join(factor.key for factor in factors)
        size = monomial if abs(coeff) == 1 else f"{abs(coeff)}*{monomial}"
        sign = "-" if coeff < 0 else ("+" if text else "")
        text += sign + size
    if const or not text:
        text += f"{const:+d}" if text else str(const)
    return text


def atom_text(text: str) -> str:
    """Returns `text`, the text of an atom, or `#` and its digest if it is too long.

    Only deeply nested formulas have such long texts.
    """
    if len(text) <= _LONGEST:
        return text
    return f"#{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def factor_text(index: Index) -> str:
    """Returns the text of an operand of `//` or `%`, in parentheses if it is a sum or product."""
    is_number = not index.terms and index.const >= 0
    monomials = [] if index.const else index.terms
    atom = len(monomials) == 1 and monomials[0][1] == 1 and len(monomials[0][0]) == 1
    return index.key if is_number or atom else f"({index.key})"


def name_text(name: str) -> str:
    """Returns `name` itself if it is one word that has no meaning in the text, else quoted."""
    word = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) and name not in ("min", "max", "none")
    return name if word else json.dumps(name)
