"""A model in one of its forms, as text: from the graph to machine code."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.artifact import read_listings
from tcc.cli.kernels.listing import kernel_listing
from tcc.cli.later_modules import forms
from tcc.cli.later_modules import text as programs
from tcc.cli.opened import is_artifact, opened_artifact
from tcc.debug import Stopped
from tcc.errors import InternalError, UserError

# The compile step whose result is shown as the form "graph" or "expr". The forms "tile", "schedule"
# and "program" show the result of the step _LAST.
_STEPS = MappingProxyType({"graph": "bind-states", "expr": "compact-buffers"})
_LAST = "describe-ports"
# The function of `tcc.passes.forms` that gives a form's texts.
_TEXTS = MappingProxyType(
    {"expr": "expression_texts", "tile": "tile_texts", "schedule": "schedule_texts"}
)
_CODE = ("llvm", "triton", "asm")
FORMS = ("graph", "expr", "tile", "schedule", "program", *_CODE)


def form_text(model: Path, form: str, kernel: str | None, input_texts: Sequence[str]) -> str:
    """Returns the text of a model's `form`, one of `FORMS`, for this machine's processor.

    `kernel` is the number of a kernel; None gives all.  `input_texts` are the texts of `--input`.
    An artifact has the forms `llvm`, `triton` and `asm` if it was compiled with --keep-ir.  Raises
    UserError for a form or a kernel that does not exist.
    """
    if form in _CODE:
        return _code(model, form, kernel, input_texts)
    if is_artifact(model):
        raise UserError(
            "an artifact holds the code of its kernels only",
            where=f"--form {form}",
            hint=f"give the ONNX file, or one of {', '.join(_CODE)}",
        )
    result = _stopped(model, _STEPS.get(form, _LAST), input_texts)
    if form in ("graph", "program"):
        if kernel is not None:
            raise UserError(f"a {form} is one text for all kernels", where=f"--kernel {kernel}")
        return forms.text(result) if form == "graph" else programs.program_text(result.program)
    texts: list[str] = list(getattr(forms, _TEXTS[form])(result))
    if kernel is None:
        return "\n".join(texts)
    if not kernel.isdecimal() or int(kernel) >= len(texts):
        raise UserError(
            "the model has no such kernel",
            where=f"--kernel {kernel}",
            hint=f"its kernels are 0 to {len(texts) - 1}",
        )
    return texts[int(kernel)]


def _stopped(model: Path, step: str, input_texts: Sequence[str]) -> Any:
    """Returns the form that the model has after a step."""
    try:
        with opened_artifact(model, input_texts, stop_after=step):
            pass
    except Stopped as stopped:
        return stopped.form
    raise InternalError(f"a compile went past the step {step}")


def _code(model: Path, form: str, kernel: str | None, input_texts: Sequence[str]) -> str:
    with opened_artifact(model, input_texts, keep_ir=True) as path:
        names = [kernel] if kernel is not None else list(read_listings(path)) or ["0"]
        return "\n".join(kernel_listing(path, name, form) for name in names)
