"""The largest values of a result, with the names of their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from tcc.runtime.arrays import Array
from tcc.runtime.reports import InputError

_SHOWN_ROWS = 8
_DEFAULT_COUNT = 5
_MOST_BYTES = 1 << 24  # of a file of labels


@dataclass(frozen=True, slots=True)
class Ranking:
    """How results are ranked: the number of values of each row, and the names of the classes.

    `labels` is empty where classes have numbers alone.
    """

    count: int
    labels: tuple[str, ...] = ()

    def fits(self, value: Any) -> bool:
        """True for an array of numbers whose last axis has an entry for each class."""
        if not isinstance(value, np.ndarray) or not value.ndim or value.dtype.kind not in "iuf":
            return False
        classes = value.shape[-1]
        return bool(value.size) and (classes == len(self.labels) if self.labels else classes > 1)

    def rows(self, value: Array) -> Iterator[list[tuple[int, str, float | int]]]:
        """Yields the index, the label and the value of the largest values of each row, in order.

        A row is a slice along the last axis. Equal values are in the order of their indices, and a
        NaN is the smallest value.
        """
        for row in value.reshape(-1, value.shape[-1]):
            numbers = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
            # The reverse of a stable sort of the reversed row keeps equal values in order.
            order = len(row) - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]
            yield [
                (int(n), self.labels[n] if self.labels else "", row[n].item())
                for n in order[: self.count]
            ]


def ranking_of(labels: Path | None, top: int | None) -> Ranking | None:
    """Returns the ranking of the `top` values, with the labels in a file; None without both.

    Without `top`, 5 values are ranked. Raises InputError for a file of labels that is
    empty or cannot be read.
    """
    if labels is None:
        return None if top is None else Ranking(top)
    return Ranking(top or _DEFAULT_COUNT, read_labels(labels))


def read_labels(path: Path) -> tuple[str, ...]:
    """Returns the lines of a file: line n names class n, counted from 0.

    Raises InputError for a file that is empty, is larger than 16 MiB, is not UTF-8, or cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"the file has more than {_MOST_BYTES} bytes")
        lines = data.decode().splitlines()
        if not lines:
            raise ValueError("the file is empty")
    except (OSError, ValueError) as error:
        raise InputError(
            "the labels cannot be read",
            where=str(path),
            why=getattr(error, "strerror", "") or str(error),
            hint="give a text file with a label in each line",
        ) from error
    return tuple(line.strip() for line in lines)


def check_ranked(ranking: Ranking, values: Mapping[str, Any]) -> None:
    """Raises InputError where `ranking` fits none of the outputs."""
    if any(map(ranking.fits, values.values())):
        return
    entries = f"{len(ranking.labels)} entries" if ranking.labels else "several entries"
    shapes = (f"{name} {getattr(value, 'shape', '')}" for name, value in values.items())
    raise InputError(
        "no output can be ranked",
        where="--labels" if ranking.labels else "--top",
        why=f"no output of numbers has a last axis of {entries}: {', '.join(shapes)}",
        hint="give a label for each class of an output" if ranking.labels else "leave it out",
    )


def ranked_lines(ranking: Ranking, name: str, value: Array) -> Iterator[str]:
    """Yields a line for each ranked value of an output; a row has a title where there are
    several."""
    count = value.size // value.shape[-1]
    for number, row in zip(range(_SHOWN_ROWS), ranking.rows(value), strict=False):
        if count > 1:
            place = np.unravel_index(number, value.shape[:-1])
            yield f"{name}[{', '.join(map(str, place))}]"
        for index, label, score in row:
            text = f"{score:.6g}" if isinstance(score, float) else str(score)
            yield f"  {text:>12}  {index}{f' {label}' if label else ''}"
    if count > _SHOWN_ROWS:
        yield f"and {count - _SHOWN_ROWS} more rows of {name}; --json has all"


def ranked_record(ranking: Ranking, value: Array) -> list[list[dict[str, Any]]]:
    """Returns the ranked values of each row, for JSON."""
    return [
        [{"index": n, "label": label, "value": _for_json(score)} for n, label, score in row]
        for row in ranking.rows(value)
    ]


def _for_json(score: float | int) -> Any:
    return score if isfinite(score) else str(score)
