"""Converts texts to C identifiers."""

import re
import unicodedata
from functools import cache
from types import MappingProxyType

_LETTER = re.compile(r" (SMALL|CAPITAL) (?:LETTER|LIGATURE) ([A-Z]+)(?: WITH .*)?$")

_SHARP = MappingProxyType({"ß": "ss", "ẞ": "SS"})


def transliterated(text: str) -> str:
    """Returns `text` in ASCII letters, digits and underscores: `Maß é-中` is `Mass_e_u4e2d`."""
    return "".join(map(_letters, text))


@cache
def _letters(char: str) -> str:
    """Returns the ASCII form of a character.

    This is the letter without accents, else its name in Unicode, else its code point. A combining
    accent gives "".
    """
    if char.isascii():
        return char if char.isalnum() else "_"
    base = unicodedata.normalize("NFKD", _SHARP.get(char, char))
    base = "".join(c for c in base if c.isascii() and c.isalnum())
    name = _LETTER.search(unicodedata.name(unicodedata.normalize("NFKC", char)[0], ""))
    if base or unicodedata.category(char).startswith("M"):
        return base
    if name:
        return name[2].lower() if name[1] == "SMALL" else name[2].title()
    return f"u{ord(char):04x}" if char.isalnum() else "_"
