"""Reads partition problems from files, which may be hostile."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_FILE_BYTES = 64 << 20
MOST_TEXT_BYTES = 128 << 20  # the limit for the text that a compressed file unpacks to
MOST_DEPTH = 64
MOST_COST = 1 << 62

# The most occurrences of a character in a file, which bound the memory of the parsed values. A
# value in a list takes about 40 bytes, a list 60, any other value more.
_MOST = {b"[": 1 << 22, b",": 1 << 25, b"{": 1 << 10, b'"': 1 << 10}


class ProblemError(ValueError):
    """An error in a problem's file: where and why, in one sentence."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node with a cost and a usage of memory for each of its strategies.

    The node uses memory at the times life[0] <= t < life[1]; at no time if life[0] >= life[1].
    """

    costs: Sequence[int]
    usages: Sequence[int]
    life: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlanEdge:
    """An edge between two nodes, with a cost for each pair of their strategies.

    `costs` is a row-major matrix with a row for each strategy of the first node.
    """

    nodes: tuple[int, int]
    costs: Sequence[int]


@dataclass(frozen=True, slots=True)
class PlanProblem:
    """Nodes, edges, and `limit`, the most memory that may be in use at any time (None: no limit).

    The nodes of an edge are indices into `nodes`.
    """

    nodes: Sequence[PlanNode]
    edges: Sequence[PlanEdge]
    limit: int | None = None


def read_problem(path: Path) -> PlanProblem:
    """Returns the problem in a file, which may be compressed by gzip.

    Raises OSError, and ProblemError if the file holds no problem or exceeds a limit.
    """
    text = _text(path)
    for mark, most in _MOST.items():
        if text.count(mark) > most:
            raise ProblemError(f"{path}: it has more than {most} of the character {mark.decode()}")
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_refuse)
    except RecursionError:
        raise ProblemError(f"{path}: its lists are nested deeper than {MOST_DEPTH}") from None
    except ValueError as error:
        raise ProblemError(f"{path}: it is no JSON of whole numbers: {error}") from None
    try:
        return _problem(value)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise ProblemError(f"{path}: it has more than {MOST_FILE_BYTES >> 20} MiB")
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.open(path) as archive:
            text = archive.read(MOST_TEXT_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProblemError(f"{path}: it is no whole gzip file: {error}") from None
    if len(text) > MOST_TEXT_BYTES:
        raise ProblemError(f"{path}: its text has more than {MOST_TEXT_BYTES >> 20} MiB")
    return text


def _refuse(word: str) -> None:
    raise ValueError(f"{word[:40]} is no whole number")


def _problem(value: object) -> PlanProblem:
    _check_depth(value)
    problem = _member(value, "problem", dict, "the file") if _has(value, "problem") else value
    nodes = _member(problem, "nodes", dict, "the problem")
    edges = _member(problem, "edges", dict, "the problem")
    limit = problem.get("usage_limit") if isinstance(problem, dict) else None
    if limit is not None:
        _check_numbers([limit], "usage_limit", MOST_COST)
    return PlanProblem(_nodes(nodes), _edges(edges, nodes), limit)


def _nodes(members: dict[str, Any]) -> list[PlanNode]:
    names = ("intervals", "costs", "usages")
    columns = [_member(members, name, list, "nodes") for name in names]
    if len({len(column) for column in columns}) != 1:
        raise ProblemError(f"nodes has lists of different lengths: {', '.join(names)}")
    nodes = []
    for number, (life, costs, usages) in enumerate(zip(*columns, strict=True)):
        _check_numbers(life, f"interval {number}", MOST_COST, 2)
        _check_numbers(costs, f"the costs of node {number}", MOST_COST)
        _check_numbers(usages, f"the usages of node {number}", MOST_COST, len(costs))
        if not costs:
            raise ProblemError(f"node {number} has no strategy")
        nodes.append(PlanNode(costs, usages, (life[0], life[1])))
    return nodes


def _edges(members: dict[str, Any], nodes: dict[str, Any]) -> list[PlanEdge]:
    ends = _member(members, "nodes", list, "edges")
    costs = _member(members, "costs", list, "edges")
    if len(ends) != len(costs):
        raise ProblemError("edges has lists of different lengths: nodes, costs")
    widths = [len(values) for values in nodes["costs"]]
    edges = []
    for number, (pair, values) in enumerate(zip(ends, costs, strict=True)):
        _check_numbers(pair, f"the nodes of edge {number}", len(widths) - 1, 2)
        rows, cols = (widths[node] for node in pair)
        _check_numbers(values, f"the costs of edge {number}", MOST_COST, rows * cols)
        edges.append(PlanEdge((pair[0], pair[1]), values))
    return edges


def _has(value: object, name: str) -> bool:
    return isinstance(value, dict) and name in value


def _member(value: object, name: str, kind: type, where: str) -> Any:
    if not isinstance(value, dict):
        raise ProblemError(f"{where} is no object")
    if not isinstance(value.get(name), kind):
        raise ProblemError(f"{where} has no {'list' if kind is list else 'object'} {name!r}")
    return value[name]


def _check_numbers(values: object, where: str, most: int, count: int | None = None) -> None:
    if not isinstance(values, list):
        raise ProblemError(f"{where} is no list")
    if count is not None and len(values) != count:
        raise ProblemError(f"{where} has {len(values)} numbers, not {count}")
    if not set(map(type, values)) <= {int}:
        raise ProblemError(f"{where} has a value that is no whole number")
    if values and not 0 <= min(values) <= max(values) <= most:
        raise ProblemError(f"{where} has a number that is not from 0 to {most}")


def _check_depth(value: object) -> None:
    """Raises ProblemError if objects and lists are nested deeper than `MOST_DEPTH`."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ProblemError(f"it is nested deeper than {MOST_DEPTH}")
