"""Facts about an artifact's kernels from its manifest, checked: the file may be untrusted."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType, NoneType
from typing import Any

from tcc.runtime.reports import InputError

_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_][\w.]*')
_PLAIN = {"symbol": str, "source": str, "flops": int, "contraction_flops": int, "bytes": int}
_FUNCTIONS = {"min": "min", "max": "max"}
_SIGNS: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


@dataclass(frozen=True, slots=True)
class KernelFact:
    """A kernel: its source, and the work and predicted time of one launch.

    `contraction_flops` is the number of the `flops` that are in contractions. `seconds` is the
    predicted time. `limit` names the resource (such as memory) that takes longest according to the
    kernel's price. The resource is busy for the fraction `limit_share` of the predicted time. Both
    are None if the manifest lacks them.

    A kernel with symbolic sizes has three `formulas` over the names `sizes`: of flops, contraction
    flops and bytes. `flops`, `bytes` and `seconds` are then those at typical sizes. `times` has a
    row (flops, bytes, seconds on all cores, seconds on one core) for each priced set of sizes.
    `limits` has a pair (limit, share) for each row of `times`, or is empty.
    """

    symbol: str
    source: str
    flops: int
    contraction_flops: int
    bytes: int
    seconds: float
    limit: str | None = None
    limit_share: float | None = None
    sizes: tuple[str, ...] = ()
    formulas: tuple[str, ...] = ()
    times: tuple[tuple[float, ...], ...] = ()
    limits: tuple[tuple[str, float], ...] = ()

    def at(self, sizes: Sequence[int | None], threads: int | None = None) -> KernelFact | None:
        """Returns the facts with the work and predicted time of a launch at `sizes`.

        The time is interpolated between priced sizes, for `threads` threads (None: all cores).  The
        limit is taken from the nearest priced sizes, on all cores.
        Returns None where a size is unknown or a formula has no value.  Raises InputError for a
        malformed formula.
        """
        if not self.formulas:
            return self
        known_sizes = [size for size in sizes if size is not None]
        if len(known_sizes) != len(sizes) or len(known_sizes) != len(self.sizes):
            return None
        names = {_name_text(name): f"sizes[{n}]" for n, name in enumerate(self.sizes)}
        try:
            values = [_evaluated(f, names | _FUNCTIONS, known_sizes) for f in self.formulas]
            flops, contraction, bytes_ = values
        except (ArithmeticError, MemoryError, RecursionError):
            return None
        all_cores, one_core = (self._interpolated(flops, bytes_, column) for column in (2, 3))
        seconds = all_cores if threads is None else max(all_cores, one_core / threads)
        limit, limit_share = self._limit_at(flops, bytes_)
        return replace(
            self,
            flops=flops,
            contraction_flops=contraction,
            bytes=bytes_,
            seconds=seconds,
            limit=limit,
            limit_share=limit_share,
        )

    def _limit_at(self, flops: int, bytes_: int) -> tuple[str | None, float | None]:
        """Returns (limit, share) at the priced sizes whose work is nearest to the arguments.

        `limit` names the resource that limits the kernel there. `share` is the part of the
        predicted time that it takes.
        """
        if not self.limits:
            return self.limit, self.limit_share
        amount = (flops, bytes_)[self._work]
        distances = [abs(row[self._work] - amount) for row in self.times]
        return self.limits[distances.index(min(distances))]

    @property
    def _work(self) -> int:
        """The index of the column of `times` that measures work.

        It is 0 (flops), or 1 (bytes) for a kernel without flops.
        """
        return 0 if any(row[0] for row in self.times) else 1

    def _interpolated(self, flops: int, bytes_: int, column: int) -> float:
        """Returns the seconds in a column of `times`, interpolated linearly by work.

        Work is flops, or bytes for a kernel without flops. Beyond the priced sets of sizes, the
        seconds are in proportion to those of the nearest set.
        """
        points = sorted((row[self._work], row[column]) for row in self.times)
        amount = (flops, bytes_)[self._work]
        if not points or not points[0][0]:
            return self.seconds
        for (low, low_seconds), (high, high_seconds) in pairwise(points):
            if low <= amount <= high and low < high:
                return low_seconds + (high_seconds - low_seconds) * (amount - low) / (high - low)
        nearest, seconds = points[0] if amount < points[0][0] else points[-1]
        return seconds * amount / nearest


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernels and steps of a program, and the peak rates of the machine it was compiled for.

    A step is the number of a kernel or the name of a runtime function.
    """

    kernels: tuple[KernelFact, ...]
    steps: tuple[int | str, ...]
    flops_per_second: float
    bytes_per_second: float


def kernel_facts(variant: Mapping[str, Any]) -> KernelFacts:
    """Returns the facts of `variant`, an entry of the manifest's `variants`.

    Raises LookupError, TypeError or ValueError where facts are missing or malformed.
    """
    kernels = tuple(
        KernelFact(
            **{name: typed(row[name], kind) for name, kind in _PLAIN.items()},
            seconds=number(row["seconds"]),
            limit=typed(row.get("limit"), str, NoneType),
            limit_share=typed(row.get("limit_share"), float, int, NoneType),
            sizes=_texts(row.get("sizes", [])),
            formulas=_texts(row.get("formulas", [])),
            times=tuple(map(_time, typed(row.get("times", []), list))),
            limits=tuple(map(_limit, typed(row.get("limits", []), list))),
        )
        for row in typed(variant["kernels"], list)
    )
    machine = variant["machine"]
    rates = [number(machine[name]) for name in ("flops_per_second", "bytes_per_second")]
    steps = tuple(typed(step, int, str) for step in variant["steps"])
    in_range = all(isinstance(s, str) or 0 <= s < len(kernels) for s in steps)
    uneven = any(k.limits and len(k.limits) != len(k.times) for k in kernels)
    if not in_range or uneven or min(rates) <= 0:
        raise ValueError("a number is out of range")
    return KernelFacts(kernels, steps, *rates)


def _evaluated(formula: str, names: Mapping[str, str], sizes: Sequence[int]) -> int:
    """Returns the value of a formula.

    `names` maps each name in the formula to the name with which Python parses it.
    """
    try:
        text = _NAME.sub(lambda name: names[name[0]], formula)
        return _value(ast.parse(text, mode="eval").body, sizes)
    except (KeyError, SyntaxError, ValueError) as error:
        raise InputError(
            "a formula of the artifact's manifest cannot be read",
            where=f"'{formula:.80}'",
            why=str(error),
            hint="compile the model again",
        ) from error


def _value(node: ast.expr, sizes: Sequence[int]) -> int:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Subscript(ast.Name("sizes"), ast.Constant(int(number))):
            return sizes[number]
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, sizes)
        case ast.BinOp(_, ast.FloorDiv() | ast.Mod(), ast.Constant(0)):
            raise ValueError("it divides by 0")
        case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left, sizes), _value(right, sizes))
        case ast.Call(ast.Name(which), [left, right], []):
            return (min if which == "min" else max)(_value(left, sizes), _value(right, sizes))
    raise ValueError(f"{type(node).__name__} is no part of a formula")


def _name_text(name: str) -> str:
    """Returns the name of a size as formulas have it: quoted unless it is a plain word."""
    word = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) and name not in ("min", "max", "none")
    return name if word else json.dumps(name)


def _texts(items: Any) -> tuple[str, ...]:
    return tuple(typed(item, str) for item in typed(items, list))


def _time(item: Any) -> tuple[float, ...]:
    flops, bytes_, all_cores, one_core = map(number, typed(item, list))
    return flops, bytes_, all_cores, one_core


def _limit(item: Any) -> tuple[str, float]:
    name, share = typed(item, list)
    return typed(name, str), number(share)


def number(value: Any) -> float:
    """Returns a number of a manifest as a float.

    Raises TypeError for another value, and ValueError unless it is finite and at least 0.
    """
    result = float(typed(value, float, int))
    if not 0 <= result < float("inf"):
        raise ValueError("a number is out of range")
    return result


def typed(value: Any, *kinds: type) -> Any:
    """Returns `value` if its type is one of `kinds`; raises TypeError otherwise."""
    if type(value) not in kinds:
        raise TypeError(f"{value!r:.64} where a {kinds[0].__name__} belongs")
    return value
