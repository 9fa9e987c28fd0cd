"""Runs the steps of a compile in order: verified, dumped and timed.

    (fold_constants, canonicalize, ...)      step 1, verify, dump ; step 2, verify, dump ; ...

A step is a function from form to form. It returns its argument if it changes nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.passes.forms import text, verify


@frozen
class Pass:
    """One step of a pipeline; it runs at `level` of -O and above."""

    name: str
    function: Callable[[Any], Any]
    level: int = 0


def run_passes(form: Any, passes: Sequence[Pass], trace: Trace, level: int = 0) -> Any:
    """Returns the form after every pass of `level` or below.

    Each pass is a stage of `trace`. A form that it changed is dumped there, and verified if the
    trace says so. Raises InternalError with the name of the pass that broke the form, and `Stopped`
    after the pass where the trace ends.
    """
    for step in passes:
        if step.level > level:
            continue
        with trace.stage(step.name):
            changed = step.function(form)
        if changed is not form:
            form = changed
            if trace.verifying:
                _verify(form, step)
            trace.dump(step.name, partial(text, form))
        trace.end(step.name, form)
    return form


def _verify(form: Any, step: Pass) -> None:
    try:
        verify(form)
    except InternalError as error:
        error.add_note(f"after pass {step.name}")
        raise
