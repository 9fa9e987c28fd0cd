"""Settings of an input: how a picture or a sound becomes the array that a model takes.

A text or a table of names and values gives them:

    bgr,letterbox=114
    resize=256,crop,scale=1/255,mean=[0.485,0.456,0.406],std=[0.229,0.224,0.225]
    rate=16000,start=8000,window=512

A value of the array is (v * scale - mean) / std for a value v of the picture (0 to 255) or of the
sound (-1 to 1). `mean` and `std` are one number, or one for each channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from math import isfinite
from types import MappingProxyType
from typing import Any

from tcc.runtime.reports import InputError

FORMATS = ("numpy", "bin", "picture", "sound")
ORDERS = ("rgb", "bgr", "rgba", "grey")
LAYOUTS = ("nchw", "nhwc", "chw", "hwc", "nhw", "hw")
FILTERS = ("nearest", "box", "bilinear", "bicubic", "lanczos")
_MOST_SIZE = 1 << 16  # pixels of an edge
_MOST_COUNT = 1 << 40  # samples, or samples per second


@dataclass(frozen=True, slots=True)
class Settings:
    """How a file becomes an array. An empty text or None leaves the choice to the file and port.

    `format` is the kind of the file (`FORMATS`), where its name does not tell it.

    Pictures: `order` is the order of the channels, `layout` the order of the axes. `resize` has a
    height and a width in pixels, or one number, to which the shorter edge is scaled. `letterbox` is
    the value (0 to 255) that fills the edges of a picture whose proportions are kept; the picture
    stands in the upper left corner, or with `centre` in the middle. `crop` keeps the proportions
    and cuts off what exceeds the array on both sides. Without both, the picture is stretched.
    `filter` is the method of scaling.

    Sound: `rate` is the model's rate in samples per second, which the file must have. `start` is
    the first sample, `window` the number of samples, `channel` the number of the channel to take.
    """

    format: str = ""
    order: str = ""
    layout: str = ""
    resize: tuple[int, ...] = ()
    letterbox: float | None = None
    centre: bool = False
    crop: bool = False
    filter: str = "bilinear"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    rate: int | None = None
    start: int = 0
    window: int | None = None
    channel: int | None = None

    def names(self) -> set[str]:
        """Returns the names of the settings that differ from their defaults."""
        return {item.name for item in fields(self) if getattr(self, item.name) != item.default}


VALUE_SETTINGS = frozenset(("format", "scale", "mean", "std"))
PICTURE_SETTINGS = VALUE_SETTINGS | {
    "order", "layout", "resize", "letterbox", "centre", "crop", "filter",
}  # fmt: skip
SOUND_SETTINGS = VALUE_SETTINGS | {"rate", "start", "window", "channel"}


# ---- readers of values: each raises ValueError with one sentence ---------------------------------


def _number(text: str) -> float:
    """Returns a number from a text such as `0.5` or `1/255`."""
    if len(text) > 40:
        raise ValueError(f"{text:.20}... is no number")
    above, slash, below = text.partition("/")
    try:
        number = float(Fraction(above) / Fraction(below)) if slash else float(text)
    except (ValueError, ArithmeticError):
        raise ValueError(f"{text!r} is no number") from None
    if not isfinite(number) or abs(number) > 1e30:
        raise ValueError(f"{text!r} is too large, or no number")
    return number


def _numbers(text: str) -> tuple[float, ...]:
    """Returns numbers from a text such as `0.5` or `[0.4,0.5,0.6]`."""
    if text.startswith("[") != text.endswith("]"):
        raise ValueError("a bracket is missing: write [0.4,0.5,0.6]")
    return tuple(_number(part.strip()) for part in text.strip("[]").split(","))


def _divisors(text: str) -> tuple[float, ...]:
    numbers = _numbers(text)
    if 0.0 in numbers:
        raise ValueError("a standard deviation of 0 divides by zero")
    return numbers


def _factor(text: str) -> float:
    factor = _number(text)
    if factor == 0.0:
        raise ValueError("a scale of 0 makes all values equal")
    return factor


def _count(lowest: int, highest: int) -> Callable[[str], int]:
    def count_of(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text) or not lowest <= int(text) <= highest:
            raise ValueError(f"{text:.20} is no whole number from {lowest} to {highest}")
        return int(text)

    return count_of


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(map(_count(1, _MOST_SIZE), text.split("x")))
    if len(sizes) > 2:
        raise ValueError(f"{text:.40} has more than a height and a width")
    return sizes


def _shade(text: str) -> float:
    shade = _number(text)
    if not 0 <= shade <= 255:
        raise ValueError(f"{text} is not from 0 to 255")
    return shade


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r:.40} is neither true nor false")
    return text == "true"


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def word_of(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r:.40} is none of {', '.join(words)}")
        return text

    return word_of


_READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "format": _one_of(FORMATS),
        "order": _one_of(ORDERS),
        "layout": _one_of(LAYOUTS),
        "resize": _sizes,
        "letterbox": _shade,
        "centre": _switch,
        "crop": _switch,
        "filter": _one_of(FILTERS),
        "scale": _factor,
        "mean": _numbers,
        "std": _divisors,
        "rate": _count(1, _MOST_COUNT),
        "start": _count(0, _MOST_COUNT),
        "window": _count(1, _MOST_COUNT),
        "channel": _count(0, 1023),
    }
)
_EXAMPLES = MappingProxyType(
    {
        "format": "bin", "order": "bgr", "layout": "nhwc", "resize": "480x640", "letterbox": "114",
        "centre": "true", "crop": "true", "filter": "bicubic", "scale": "1/255",
        "mean": "[0.485,0.456,0.406]", "std": "[0.229,0.224,0.225]", "rate": "16000", "start": "0",
        "window": "512", "channel": "0",
    }
)  # fmt: skip
# Words that stand for a setting with its value.
_WORDS = MappingProxyType(
    dict.fromkeys(ORDERS, "order")
    | dict.fromkeys(LAYOUTS, "layout")
    | {"letterbox": "letterbox", "centre": "centre", "crop": "crop", "bin": "format"}
)
_WORD_VALUES = MappingProxyType({"letterbox": "0", "centre": "true", "crop": "true"})


def read_settings(text: str, where: str) -> Settings:
    """Returns the settings of a text such as `bgr,letterbox=114`.

    Raises InputError, with `where` as its place, for a text that gives no settings.
    """
    # Commas inside of brackets separate numbers.
    parts = re.split(r",(?![^\[]*\])", text)
    return _settings(map(_pair, parts), where)


def _pair(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals and name in _WORDS:
        return _WORDS[name], _WORD_VALUES.get(name, name)
    return name, value


def settings_of_table(table: Mapping[str, Any], where: str) -> Settings:
    """Returns the settings of a table of TOML or JSON, such as `{"mean": [0.5, 0.5, 0.5]}`.

    Raises InputError, with `where` as its place, for another name or value.
    """
    return _settings(((name, _text(value)) for name, value in table.items()), where)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def _settings(pairs: Iterable[tuple[str, str]], where: str) -> Settings:
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in _READERS:
            raise InputError(
                f"there is no setting {name!r:.60}",
                where=where,
                hint=f"the settings are {', '.join(_READERS)}",
            )
        if name in values:
            raise InputError(f"the setting {name} is given twice", where=where)
        try:
            values[name] = _READERS[name](text)
        except ValueError as error:
            raise InputError(
                f"the setting {name} is bad", where=where, why=str(error),
                hint=f"write it as in {name}={_EXAMPLES[name]}",
            ) from None  # fmt: skip
    settings = Settings(**values)
    _check_together(settings, where)
    return settings


def _check_together(settings: Settings, where: str) -> None:
    """Raises InputError for settings that exclude each other."""
    if settings.letterbox is not None and (settings.crop or len(settings.resize) == 1):
        raise InputError(
            "two settings exclude each other",
            where=where,
            why="letterbox shows the whole picture; crop and resize=N cut or leave its size open",
            hint="leave one of them out",
        )
    if settings.centre and settings.letterbox is None:
        raise InputError("centre places a picture in its letterbox", where=where,
                         hint="add letterbox, or leave centre out")  # fmt: skip
    kinds = [
        kind
        for kind, allowed in (("a picture", PICTURE_SETTINGS), ("a sound", SOUND_SETTINGS))
        if settings.names() - allowed
    ]
    if len(kinds) == 2:
        raise InputError("settings of a picture and of a sound are mixed", where=where,
                         hint="give those of one kind of file")  # fmt: skip
