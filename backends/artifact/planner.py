"""The runtime's planners with limited searches: of arenas, and of partitions among ranks."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tcc.backends.artifact.toolchain import planner_library
from tcc.errors import InternalError, ToolError, UserError
from tcc.passes.memory.plan_arena import ALIGN, ArenaPlanner, Lifetime
from tcc.runtime.partition import Partitioner, PlanProblem
from tcc.runtime.planner import Life, Planner

_T = TypeVar("_T")

# The exact search runs if greedy plans exceed the lower bound. It visits at most this many buffers,
# which takes about half a second.
STEPS = 1 << 26
# The search for a partition reads at most this many costs, which takes about two seconds.
PARTITION_STEPS = 1 << 30


@cache
def arena_planner() -> ArenaPlanner:
    """Returns the planner; it checks each plan that it returns.

    Raises ToolError if its library can be neither found nor compiled, or cannot be loaded. The
    planner itself raises UserError if there are too many buffers, or if they are too large.
    """
    planner = _loaded(Planner, "arena")

    def plan(lifetimes: Sequence[Lifetime]) -> tuple[Sequence[int], int]:
        lives = [Life(b.first, b.last + 1, b.size, ALIGN, b.over) for b in lifetimes]
        try:
            arena = planner.plan(lives, steps=STEPS)
        except ValueError as error:
            raise UserError("the model's memory cannot be planned", why=error) from error
        try:
            planner.check(lives, arena)
        except ValueError as error:
            raise InternalError("the arena's plan is wrong", why=error) from error
        return arena.offsets, arena.peak

    return plan


def _loaded(kind: Callable[[Path], _T], name: str) -> _T:
    path = planner_library()
    try:
        return kind(path)
    except OSError as error:
        raise ToolError(f"the {name} planner cannot be loaded", where=path, why=error) from error


@cache
def partition_solver() -> Callable[[Any], Sequence[int]]:
    """Returns a function from a partition problem to the number of an alternative for each node.

    The problem has the fields of `PlanProblem`. Raises ToolError if the planner's library can be
    neither found nor compiled, or cannot be loaded. The function raises UserError if no
    alternatives
    stay within the limit of memory.
    """
    partitioner = _loaded(Partitioner, "partition")

    def solve(problem: PlanProblem) -> Sequence[int]:
        partition = partitioner.partition(problem, steps=PARTITION_STEPS)
        if not partition.valid:
            raise UserError(
                "the model does not fit the memory of the ranks",
                why="no division of the model stays within the limit",
                hint="allow more memory, or more ranks",
            )
        return partition.strategies

    return solve
