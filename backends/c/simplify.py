"""Shortens straight lines of C: removes unused variables, and inlines those with one use.

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
    """Returns equivalent statements in fewer lines.

    A definition moves only past other definitions and never past a store, so its value stays the
    same.
    """
    while True:
        shorter = _once(lines)
        if len(shorter) == len(lines):
            return lines
        lines = shorter


def _once(lines: list[str]) -> list[str]:
    counts = Counter(re.findall(r"\w+", "\n".join(lines)))
    for place, line in enumerate(lines):
        match = _DEFINITION.fullmatch(line)
        if match is None:
            continue
        name, text = match.groups()
        lines_left = [*lines[:place], *lines[place + 1 :]]
        if counts[name] == 1:
            return lines_left
        user = _user(lines, place, name)
        if counts[name] != 2 or user is None:
            continue
        is_assignment = lines[user].endswith(f" = {name};")
        merged = re.sub(rf"\b{name}\b", text, lines[user])
        if (is_assignment or _ELEMENT.fullmatch(text)) and len(merged) <= _WIDTH:
            lines_left[user - 1] = merged
            return lines_left
    return lines


def _user(lines: list[str], place: int, name: str) -> int | None:
    """Returns the index of the first line after line `place` that uses `name`.

    Returns None if a line between the two is no definition, or if the line that uses it is no
    statement but the head of a block, such as a `for`.
    """
    for number in range(place + 1, len(lines)):
        if re.search(rf"\b{name}\b", lines[number]):
            is_statement = lines[number].endswith(";") and not lines[number].lstrip().startswith(
                "for"
            )
            return number if is_statement else None
        if not _DEFINITION.fullmatch(lines[number]):
            return None
    return None
