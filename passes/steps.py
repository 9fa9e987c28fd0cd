"""Describes a step of a compile: one row of a table of steps.

Step("narrow-storage", narrowed, reads=("precision", "outer"))
  applied to a form:  narrowed(form, settings.precision, settings.outer)
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tcc.frozen import frozen


@frozen
class Step:
    """A named function from form to form, and its condition.

    The steps of a table share one settings object.  A step runs if the level of -O is at least
    `level`, and if the settings' attribute `when` is true; an empty `when` is always true.  The
    function takes the form, then the settings' attributes that `reads` names.  The name of an
    attribute may have dots.
    """

    name: str
    function: Callable[..., Any]
    level: int = 0
    when: str = ""
    reads: tuple[str, ...] = ()

    def runs(self, settings: Any) -> bool:
        """Returns True if the condition holds."""
        return not self.when or bool(attrgetter(self.when)(settings))

    def apply(self, form: Any, settings: Any) -> Any:
        """Returns the function's result for `form`."""
        return self.function(form, *(attrgetter(name)(settings) for name in self.reads))
