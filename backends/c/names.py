"""Identifiers of one scope of the C file, each given once."""

import re

_TAKEN = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union "
    "unsigned void volatile while bool true false".split()
)


class Names:
    """Gives every name that is asked for a C identifier of its own, `taken` ones left out."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(_TAKEN | taken)

    def fresh(self, wanted: str) -> str:
        """`wanted` with other characters as underscores, and a number where it is taken."""
        base = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "x"
        base = f"x{base}" if base[0].isdigit() else base
        joint = "_" if base[-1].isdigit() else ""
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}{joint}{count}"
        self._taken.add(name)
        return name
