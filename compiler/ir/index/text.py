"""The text of integer expressions, which is also the order in which they sort."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcc.ir.index import Index


# Formulas that an import gives no name (`tcc.frontends.scope`) have shorter texts.
_LONGEST = 1 << 13


@lru_cache(1 << 16)
def sum_text(total: Index) -> str:
    """`2*a*b-c+3` of the products `((a, b), 2), ((c,), -1)` and the constant 3."""
    text, const = "", total.const
    for factors, coeff in total.terms:
        product = "*".join(factor.key for factor in factors)
        size = product if abs(coeff) == 1 else f"{abs(coeff)}*{product}"
        sign = "-" if coeff < 0 else ("+" if text else "")
        text += sign + size
    if const or not text:
        text += f"{const:+d}" if text else str(const)
    return text


def atom_text(text: str) -> str:
    """The text of an atom; a long one, which only formulas of formulas have, becomes its digest."""
    if len(text) <= _LONGEST:
        return text
    return f"#{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def factor_text(total: Index) -> str:
    """The text of a sum as an operand of `//` or `%`."""
    alone = not total.terms and total.const >= 0
    products = [] if total.const else total.terms
    atom = len(products) == 1 and products[0][1] == 1 and len(products[0][0]) == 1
    return total.key if alone or atom else f"({total.key})"


def name_text(name: str) -> str:
    """`name` itself where it reads as one word, else quoted."""
    word = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) and name not in ("min", "max", "none")
    return name if word else json.dumps(name)
