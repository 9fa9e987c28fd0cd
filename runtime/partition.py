"""The partition planner of src/plan in Python: a strategy for each node of a graph.

    python -m tcc.runtime.partition FILE.json[.gz] --seconds 30

plans a problem in the format of the contest on intra-operator parallelism (ASPLOS 2025).  A problem
has nodes with their lifetimes, costs and memory usage, edges with their costs, and a limit of
memory.  The output is the list of strategies (an index for each node) and a last line
`cost C bound B verdict valid|invalid`: the cost of the plan, a lower bound for the cost of any
valid plan, and the verdict of an evaluator that shares no code with the planner.

Exit codes: 0: a valid plan; 1: no valid plan was found; 2: a wrong file or argument; 3: the
planner's library is missing; 130: interrupted.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tcc.runtime.partition_file import PlanEdge, PlanNode, PlanProblem, ProblemError, read_problem
from tcc.runtime.planner import LIBRARY, check_status

__all__ = ["Partition", "Partitioner", "PlanEdge", "PlanNode", "PlanProblem", "evaluate"]

_ENDLESS = (1 << 63) - 1
_GoOn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
_Numbers = ctypes.POINTER(ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Partition:
    """A plan: the index of a strategy for each node, and the cost of all nodes and edges.

    No valid plan costs less than `bound`.  `valid` is True if memory stays within the limit; if the
    search found no valid plan, the plan is the one nearest to the limit.  `impossible` is True if
    no valid plan exists.  `steps` is the number of entries of cost tables that the search read.
    """

    strategies: tuple[int, ...]
    cost: int
    bound: int
    valid: bool
    impossible: bool
    steps: int


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "edges")),
        *(
            (name, _Numbers)
            for name in ("strategies", "lives", "costs", "usages", "ends", "edge_costs")
        ),
        ("limit", ctypes.c_int64),
    ]


class _Partition(ctypes.Structure):
    _fields_ = [
        ("cost_low", ctypes.c_uint64),
        ("cost_high", ctypes.c_int64),
        ("bound_low", ctypes.c_uint64),
        ("bound_high", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("valid", ctypes.c_int32),
        ("impossible", ctypes.c_int32),
    ]


class Partitioner:
    """The planner in the shared library at `path`; raises OSError if it cannot be loaded."""

    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.tcc_last_error.restype = ctypes.c_char_p

    def partition(
        self,
        problem: PlanProblem,
        *,
        steps: int | None = None,
        go_on: Callable[[int], bool] | None = None,
    ) -> Partition:
        """Returns the best plan that a search of about `steps` steps finds; None means no limit.

        The search ends early if the plan's cost equals the lower bound, or if `go_on` returns
        False.  The search calls `go_on` with the number of steps so far.  Equal arguments give
        equal plans, unless `go_on` ends the search.  Raises MemoryError, and ValueError for an
        invalid problem; the message names the node or edge.
        """
        arrays = _arrays(problem)
        strategies = (ctypes.c_int32 * len(problem.nodes))()
        numbers = _Partition()
        errors: list[BaseException] = []

        def ask(_: int | None, steps_done: int) -> bool:
            try:
                return go_on is None or go_on(steps_done)
            except BaseException as error:  # ctypes would only print the exception
                errors.append(error)
                return False

        status = self._library.tcc_plan_partition(
            ctypes.byref(_pointers(problem, arrays)),
            ctypes.c_int64(_ENDLESS if steps is None else steps),
            _GoOn(ask) if go_on else _GoOn(),
            None,
            strategies,
            ctypes.byref(numbers),
        )
        if errors:
            raise errors[0]
        check_status(self._library, status)
        return Partition(
            tuple(strategies),
            (numbers.cost_high << 64) + numbers.cost_low,
            (numbers.bound_high << 64) + numbers.bound_low,
            bool(numbers.valid),
            bool(numbers.impossible),
            numbers.steps,
        )


def _arrays(problem: PlanProblem) -> tuple[array[int], ...]:
    nodes, edges = problem.nodes, problem.edges
    for number, edge in enumerate(edges):
        if not all(0 <= n < len(nodes) for n in edge.nodes):
            raise ValueError(f"edge {number} has a node that is none")
        rows, cols = (len(nodes[n].costs) for n in edge.nodes)
        if len(edge.costs) != rows * cols:
            raise ValueError(f"edge {number} has {len(edge.costs)} costs, not {rows} x {cols}")
    for number, node in enumerate(nodes):
        if len(node.costs) != len(node.usages):
            raise ValueError(f"node {number} has not as many usages as costs")
    return (
        _numbers(len(node.costs) for node in nodes),
        _numbers(chain.from_iterable(node.life for node in nodes)),
        _numbers(chain.from_iterable(node.costs for node in nodes)),
        _numbers(chain.from_iterable(node.usages for node in nodes)),
        _numbers(chain.from_iterable(edge.nodes for edge in edges)),
        _numbers(chain.from_iterable(edge.costs for edge in edges)),
    )


def _numbers(values: Iterable[int]) -> array[int]:
    try:
        return array("q", values)
    except OverflowError as error:
        raise ValueError("a number of the problem does not fit into 64 bits") from error


def _pointers(problem: PlanProblem, arrays: Sequence[array[int]]) -> _Problem:
    """Returns the problem in C, which the arrays must outlive."""
    pointers = (ctypes.cast(values.buffer_info()[0], _Numbers) for values in arrays)
    limit = -1 if problem.limit is None else problem.limit
    return _Problem(len(problem.nodes), len(problem.edges), *pointers, limit)


def evaluate(problem: PlanProblem, strategies: Sequence[int]) -> tuple[int, bool]:
    """Returns (cost of a plan, True if memory stays within the limit at all times).

    `strategies` has the index of the strategy of each node.
    """
    nodes, limit = problem.nodes, problem.limit
    cost = sum(node.costs[s] for node, s in zip(nodes, strategies, strict=True))
    for edge in problem.edges:
        first, second = edge.nodes
        cost += edge.costs[strategies[first] * len(nodes[second].costs) + strategies[second]]
    changes: dict[int, int] = {}
    for node, strategy in zip(nodes, strategies, strict=True):
        lower, upper = node.life
        if lower < upper:
            changes[lower] = changes.get(lower, 0) + node.usages[strategy]
            changes[upper] = changes.get(upper, 0) - node.usages[strategy]
    usage = most = 0
    for time_ in sorted(changes):
        usage += changes[time_]
        most = max(most, usage)
    return cost, limit is None or most <= limit


class _Progress:
    """Ends a search `seconds` after `start`; shows its progress if stderr is a terminal."""

    def __init__(self, start: float, seconds: float) -> None:
        self._start = self._shown = start
        self._seconds = seconds

    def __call__(self, steps: int) -> bool:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown >= 1:
            self._shown = now
            text = f"{now - self._start:.0f} s, {steps:,} steps"
            print(f"\r{text}\033[K", end="", file=sys.stderr)
        return now - self._start < self._seconds

    def close(self) -> None:
        """Removes the line of progress."""
        if self._shown != self._start:
            print("\r\033[K", end="", file=sys.stderr)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tcc.runtime.partition",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE.json[.gz]", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=30, help="when the search ends (default: 30)"
    )
    parser.add_argument(
        "--steps", type=int, help="end it after so many steps instead: equal on every machine"
    )
    arguments = parser.parse_args(words)
    for name in ("seconds", "steps"):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value <= _ENDLESS:
            parser.error(f"argument --{name}: {value} is not from 0 to 2^63 - 1")
    return arguments


def _run(arguments: argparse.Namespace, start: float) -> int:
    problem = read_problem(arguments.file)
    progress = _Progress(start, arguments.seconds if arguments.steps is None else float("inf"))
    try:
        plan = Partitioner().partition(problem, steps=arguments.steps, go_on=progress)
    finally:
        progress.close()
    cost, valid = evaluate(problem, plan.strategies)
    print(list(plan.strategies))
    print(f"cost {cost} bound {plan.bound} verdict {'valid' if valid else 'invalid'}")
    return int(not valid)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    start = time.monotonic()
    arguments = _arguments(words)
    if not LIBRARY.is_file():
        print(
            f"error: the planner's library is missing\n  at: {LIBRARY}\n"
            "  to do: install tcc where a C compiler is, or run scripts/devtree in its sources",
            file=sys.stderr,
        )
        return 3
    try:
        return _run(arguments, start)
    except (OSError, ProblemError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"error: {arguments.file}: memory does not suffice for it", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
