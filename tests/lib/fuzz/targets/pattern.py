"""A fuzz target: compiles regular expressions to automata and runs them on a text.

The input is a pattern and a text, with a line break between. Python's `re` is the oracle for
patterns that mean the same there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tcc.ops.data.regex import compile_pattern, matches

# RE2 and Python agree on these. Counts in braces are left out, because they nest to huge patterns.
_SHARED = re.compile(r"(?:[a-c019 _.|^$\[\]-]|\((?:\?:)?|\)[*+?]?|(?<=[a-c0-9.\])])[*+?])*")
_TEXT = re.compile(r"[ -~]{0,12}")


def check(data: bytes) -> None:
    """Raises an exception that a user must not see, or AssertionError for an answer unlike
    Python's."""
    pattern, _, text = data.decode("utf-8", "replace").partition("\n")
    try:
        automaton = compile_pattern(pattern)
    except ValueError:
        return
    spans = matches(automaton, text.encode())
    if len(pattern) <= 24 and _SHARED.fullmatch(pattern) and _TEXT.fullmatch(text):
        try:
            expected = re.fullmatch(pattern, text) is not None
        except re.error:
            return
        assert spans == expected, f"{pattern!r} on {text!r}: {spans}, Python says {expected}"


def seeds(folder_of: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    compile_pattern(r"(?i)ß\pL")  # The first call makes the character tables, which takes a second.
    texts = (
        "[a-c]+x?\nabcx", "(?i)straße\nSTRASSE", "a{2,5}(b|c)*\naab", r"\bword\b\\d+" + "\nword9",
        r"[[:alpha:]]\pL\x{1F600}" + "\nab😀", "(?:a|b)*c\nababc", "^a.c$\nabc",
        r"\Qa+b\E" + "\na+b", "((a*)*)*b\naaaaaaaa", "[^a-z]\nÄ", "(?P<n>a)\na",
    )  # fmt: skip
    for number, text in enumerate(texts):
        yield f"pattern-{number}", text.encode()
