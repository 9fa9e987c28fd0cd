"""Describes a step of a compile: a row in a table of steps.

The row Step("narrow-storage", narrowed, reads=("precision", "outer")) makes this call:
    narrowed(form, settings.precision, settings.outer)
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tcc.frozen import frozen


@frozen
class Step:
    """A named function that takes a form and returns a form, and the condition under which it runs.

    The steps of a table share one settings object.  A step runs if the level of -O is at least
    `level`, and if the settings' attribute named `when` is true; an empty `when` is always true.
    The function takes the form, then the settings' attributes that `reads` names.  An attribute's
    name may have dots, as in `planner.scratch`.
    """

    name: str
    function: Callable[..., Any]
    level: int = 0
    when: str = ""
    reads: tuple[str, ...] = ()

    def runs(self, settings: Any) -> bool:
        """Returns True if the attribute `when` of `settings` is true, or if `when` is empty."""
        return not self.when or bool(attrgetter(self.when)(settings))

    def apply(self, form: Any, settings: Any) -> Any:
        """Returns the function's result for `form`."""
        return self.function(form, *(attrgetter(name)(settings) for name in self.reads))
