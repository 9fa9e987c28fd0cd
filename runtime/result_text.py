"""Results as lines of text, and as records for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

_SHOWN_TEXTS, _SHOWN_TEXT = 4, 60


def array_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line per array: name, type, shape, and range, or the first strings.

    Each element of a sequence has a line of its own.
    """
    for name, array in values.items():
        if array is None:
            yield f"{name}: no element"
            continue
        if isinstance(array, list):
            yield f"{name}: sequence of {len(array)}"
            yield from array_lines({f"{name}.{n}": item for n, item in enumerate(array)})
            continue
        shape = "x".join(map(str, array.shape)) or "scalar"
        if array.dtype == object:
            examples = [repr(str(text))[:_SHOWN_TEXT] for text in array.reshape(-1)[:_SHOWN_TEXTS]]
            more = ["..."] if array.size > _SHOWN_TEXTS else []
            yield f"{name}: string {shape}: {', '.join([*examples, *more])}"
            continue
        lines = f"{name}: {array.dtype.name} {shape}"
        if array.size and array.dtype.kind in "iufb":
            facts = {"least": array.min(), "largest": array.max(), "mean": array.mean()}
            lines += "".join(f", {name} {_number(fact)}" for name, fact in facts.items())
        yield lines


def _number(value: Any) -> str:
    """Returns six digits of a float, all digits of an integer."""
    return f"{value:.6g}" if value.dtype.kind == "f" else str(value)


def array_record(value: Any, paths: Mapping[str, Any] | None = None, name: str = "") -> Any:
    """Returns element type, shape and values of a result, for JSON; None stays, lists recurse.

    With `paths`, the record of a result has the path of its file in place of its values; `paths`
    are those of `write_arrays`, and `name` is the name of the result. Floats that JSON lacks become
    the texts "nan", "inf" and "-inf".
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [array_record(item, paths, f"{name}.{n}") for n, item in enumerate(value)]
    dtype = "string" if value.dtype == object else value.dtype.name
    content = {"values": _finite(value.tolist())} if paths is None else {"path": str(paths[name])}
    return {"dtype": dtype, "shape": value.shape, **content}


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(item) for item in values]
    return str(values) if isinstance(values, float) and not isfinite(values) else values
