"""Runs the steps of a compile in order, and verifies, dumps and times each.

    (fold_constants, canonicalize, ...)      step 1, verify, dump ; step 2, verify, dump ; ...

A step is a function from form to form. It returns its argument if it changes nothing.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.passes.forms import text, verify
from tcc.passes.steps import Step


def run_steps(form: Any, steps: Sequence[Step], settings: Any, trace: Trace, level: int = 0) -> Any:
    """Returns the form after all steps of at most `level` whose conditions hold.

    Each step is a stage of `trace`.  The trace dumps each form that a step changed.  If it is set
    to verify forms, it also verifies the changed forms.  Raises InternalError, with the name of the
    step, for a form that a step broke.  Raises `Stopped` after the step at which the trace ends.
    """
    for step in steps:
        if step.level > level or not step.runs(settings):
            continue
        with trace.stage(step.name):
            changed = step.apply(form, settings)
        if changed is not form:
            form = changed
            if trace.verifying:
                _verify(form, step)
            trace.dump(step.name, partial(text, form))
        trace.end(step.name, form)
    return form


def _verify(form: Any, step: Step) -> None:
    try:
        verify(form)
    except InternalError as error:
        error.add_note(f"after step {step.name}")
        raise
