"""The arena planner that the pass plan-arena is given: the runtime's, with a budget in steps."""

from collections.abc import Sequence
from functools import cache

from tcc.backends.artifact.toolchain import planner_library
from tcc.errors import InternalError, ToolError, UserError
from tcc.passes.memory.plan_arena import ALIGN, ArenaPlanner, Lifetime
from tcc.runtime.planner import Life, Planner

# Where greedy plans take more than the bound, the search looks at so many buffers: half a second.
STEPS = 1 << 26


@cache
def arena_planner() -> ArenaPlanner:
    """The planner; every plan is checked.  Raises ToolError where its library is neither shipped
    nor can be compiled, or cannot be loaded.

    The planner raises UserError for buffers that are too many or too large to be planned.
    """
    path = planner_library()
    try:
        planner = Planner(path)
    except OSError as error:
        raise ToolError("the arena planner cannot be loaded", where=path, why=error) from error

    def plan(lifetimes: Sequence[Lifetime]) -> tuple[Sequence[int], int]:
        lives = [Life(b.first, b.last + 1, b.size, ALIGN, b.over) for b in lifetimes]
        try:
            found = planner.plan(lives, steps=STEPS)
        except ValueError as error:
            raise UserError("the model's memory cannot be planned", why=error) from error
        try:
            planner.check(lives, found)
        except ValueError as error:
            raise InternalError("the arena's plan is wrong", why=error) from error
        return found.offsets, found.peak

    return plan
