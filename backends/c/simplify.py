"""Straight lines of C made shorter: unused variables go, and those used once, at once, too.

const float v = in0[k];
const float v2 = sum + v;          sum = sum + in0[k];
sum = v2;
"""

import re
from collections import Counter

_DEFINITION = re.compile(r" *const \w+ (\w+) = (.*);")
_ELEMENT = re.compile(r"\w+\[[^\[\]]*\]")
_WIDTH = 100


def simplified(lines: list[str]) -> list[str]:
    """The same statements in fewer lines.  A value moves only past definitions, never past a store,
    so it is what it was."""
    while True:
        shorter = _once(lines)
        if len(shorter) == len(lines):
            return lines
        lines = shorter


def _once(lines: list[str]) -> list[str]:
    counts = Counter(re.findall(r"\w+", "\n".join(lines)))
    found = list(lines)
    for place, line in enumerate(lines):
        match = _DEFINITION.fullmatch(line)
        if match is None:
            continue
        name, text = match.groups()
        if counts[name] == 1:
            return [*found[:place], *found[place + 1 :]]
        user = _user(lines, place, name)
        if counts[name] != 2 or user is None:
            continue
        whole = lines[user].endswith(f" = {name};")
        merged = re.sub(rf"\b{name}\b", text, lines[user])
        if (whole or _ELEMENT.fullmatch(text)) and len(merged) <= _WIDTH:
            found[user] = merged
            return [*found[:place], *found[place + 1 :]]
    return lines


def _user(lines: list[str], place: int, name: str) -> int | None:
    """The line that has `name` first, where only definitions stand before it."""
    for other in range(place + 1, len(lines)):
        if re.search(rf"\b{name}\b", lines[other]):
            simple = lines[other].endswith(";") and not lines[other].lstrip().startswith("for")
            return other if simple else None
        if not _DEFINITION.fullmatch(lines[other]):
            return None
    return None
