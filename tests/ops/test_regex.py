"""Automata of regular expressions agree with Python's matcher; unsupported syntax and large
automata are refused."""

from __future__ import annotations

import random
import re

import pytest
from tcc.ops.data.regex import compile_pattern, matches

PATTERNS = (
    "",
    "abc",
    r"a*b+c?",
    r"(ab|c){2,3}",
    r"(?:a|b)*abb(a|b){0,3}?",
    r"[^a-c]x",
    r"[]a]+|[a\]^-]{2}",
    r".*é.*",
    r"[à-ÿ]+",
    "[\u0800-\uffff]a*",
    "[\U00010000-\U0010ffff]b",
    r"(?i)aBc|é",
    r"a.c",
    r"(?s)a.c|a.(?-s:.)c",
    r"^a|b$|^$",
    r"(^a|b$)*",
    r"\x41\u0062|\101",
    r"www\.[\w.-]+\.\bcom\b",
    r"(a|\bb|c\b|\B.)*",
    r"\b.*\b",
    r"(\W|^)[\w.\-]{0,5}@(x|a)\.b(\W|$)",
    r"\d\D\s\S|\t",
    r"(?P<name>a)(?P<other>b)",
)


def texts() -> list[str]:
    texts_made = [
        "",
        "abc",
        "aBC",
        "É",
        "a\nc",
        "Ab",
        "AbA",
        "www.x-y.com",
        "ca@x.b",
        " @a.b\t",
        "1a c",
    ]
    texts_made += ["\u0800aa", "\ud7ff", "\uffff", "\U00010000b", "\U0010ffffb", "ÿà", "]a]", "-^"]
    rng = random.Random(0)
    alphabet = "aabbcxé@. \n\u0800]"
    return texts_made + ["".join(rng.choices(alphabet, k=rng.randrange(9))) for _ in range(200)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agrees_with_python(pattern: str) -> None:
    ours = compile_pattern(pattern.replace(r"\u0062", "b"))
    # RE2's character classes are ASCII, but its letters have cases beyond ASCII.
    theirs = re.compile(pattern, 0 if "(?i)" in pattern else re.ASCII)
    wrong = [t for t in texts() if matches(ours, t.encode()) != bool(theirs.fullmatch(t))]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"[[:alpha:]]+[[:^digit:]]", "ab!", True),
        (r"\p{Lu}\p{Ll}*\PN", "Éa-", True),
        (r"\x{1F600}\Q.*\E", "\U0001f600.*", True),
        (r"(?i)k", "\u212a", True),  # the Kelvin sign
        (r".", "\ufffd", True),
        (r"a{,3}", "a{,3}", True),
        (r"(?U)a+?", "aaa", True),
        (r"\B", "", True),
    ],
)
def test_patterns_that_python_spells_differently(pattern: str, text: str, expected: bool) -> None:
    assert matches(compile_pattern(pattern), text.encode()) is expected


def test_bytes_that_are_no_utf8_match_nothing() -> None:
    anything = compile_pattern("(?s).*")
    for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80"):
        assert not matches(anything, data)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        ("*a", "repeats nothing"),
        ("[a", "too early"),
        ("[b-a]", "no range"),
        ("a{2,1}", "repeats from 2 to 1"),
        (r"(a)\1", "not supported"),
        ("(?=a)", "not supported"),
        ("(?<=a)", "not supported"),
        ("(?m)^a", "not supported"),
        (r"\p{Greek}", "not supported"),
        ("a{1001}", "more than 1000"),
        ("(" * 60 + ")" * 60, "nest"),
        ("a" * 10_001, "longer"),
        ("((a{100}){100}){100}", "places"),
        (".*a.{18}", "states"),
    ],
)
def test_refusals_say_why(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compile_pattern(pattern)
