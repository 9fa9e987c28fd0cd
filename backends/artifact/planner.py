"""The arena planner for the pass plan-arena: the runtime's planner with a limited search."""

from collections.abc import Sequence
from functools import cache

from tcc.backends.artifact.toolchain import planner_library
from tcc.errors import InternalError, ToolError, UserError
from tcc.passes.memory.plan_arena import ALIGN, ArenaPlanner, Lifetime
from tcc.runtime.planner import Life, Planner

# The exact search runs if greedy plans exceed the lower bound. It visits at most this many buffers,
# which takes about half a second.
STEPS = 1 << 26


@cache
def arena_planner() -> ArenaPlanner:
    """Returns the planner; it checks each plan that it returns.

    Raises ToolError if its library can be neither found nor compiled, or cannot be loaded. The
    planner itself raises UserError if there are too many buffers, or if they are too large.
    """
    path = planner_library()
    try:
        planner = Planner(path)
    except OSError as error:
        raise ToolError("the arena planner cannot be loaded", where=path, why=error) from error

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
