"""The exceptions users see: what happened, where, why, and what to do about it.

There are three kinds, by who can fix the cause, each with an exit code of the process: `UserError`
(the model or the arguments: 2), `ToolError` (another program is missing or failed: 3) and
`InternalError` (a fault of tcc: 70).
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path

DISK_ERRORS = (ENOSPC, EDQUOT, EFBIG, EIO)


def printable(text: str, allowed: str = "") -> str:
    """Returns `text` with unprintable characters as escapes, except the characters in `allowed`.

    Names come from models: they must not move the cursor, or look like lines of tcc.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or c in allowed
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


class TccError(Exception):
    """Base of every error tcc raises on purpose.

    `what` is one sentence; `where` names the source (file, node, argument); `why` gives the cause;
    `hint` says what to do.  Empty parts are left out of the message.
    """

    exit_code = 70

    def __init__(
        self, what: str, *, where: str | Path = "", why: str | Exception = "", hint: str = ""
    ) -> None:
        self.what, self.where, self.why, self.hint = what, str(where), str(why), hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [printable(self.what)]
        for label, text in (("at", self.where), ("because", self.why), ("to do", self.hint)):
            if text:
                # Only causes have several lines; the indent keeps them from looking like labels.
                printed = printable(text, "\n\t" if label == "because" else "")
                printed = re.sub(r"\n(?=\S)", "\n    ", printed)
                parts.append(f"  {label}: {printed}".replace(": \n", ":\n", 1))
        return "\n".join(parts)


class CompileWarning(UserWarning):
    """A fact of a finished compile that may surprise, as `tcc compile` prints it."""


class UserError(TccError):
    """The user can fix the cause: a model, an argument, an array."""

    exit_code = 2


class RunTimeoutError(UserError, TimeoutError):
    """A run took longer than the seconds that its caller gave it."""


class ToolError(TccError):
    """Another program is missing or failed; `why` holds its command and its last output."""

    exit_code = 3


class InternalError(TccError):
    """A fault inside tcc.  The message names the pass or form that detected it."""

    exit_code = 70


def check_written(program: str, words: str) -> None:
    """Raises `UserError` if the last words of another program say that a disk is full or fails."""
    texts = [*map(os.strerror, DISK_ERRORS)]
    for line in words.splitlines():
        if any(text in line for text in texts):
            hint = "free space; TMPDIR and XDG_CACHE_HOME name other places for temporary files"
            raise UserError(f"{program} could not write a file", why=line.strip(), hint=hint)


def require_none(what: str, problems: Iterable[str]) -> None:
    """Raises `InternalError` whose `why` lists every problem, one on each line."""
    lines = list(problems)
    if lines:
        raise InternalError(what, why="\n    ".join(lines))


@contextmanager
def file_errors(what: str, where: str | Path, hint: str = "") -> Iterator[None]:
    """Turns an OSError of its block into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(what, where=where, why=error.strerror or str(error), hint=hint) from error
