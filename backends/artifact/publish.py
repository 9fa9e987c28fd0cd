"""Publishes only complete files: they are written to a temporary folder nearby, then renamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.errors import UserError
from tcc.temporary import locked_folder


@contextmanager
def folder_beside(
    out: Path, what: str, hint: str = "choose another place with -o"
) -> Iterator[Path]:
    """Yields a temporary folder on the same disk as `out`.

    Folders that killed processes left there are deleted. An OSError in the context becomes a
    UserError that says that `what` cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(".tcc-made-", out.parent) as folder:
            yield folder
    except OSError as error:
        raise UserError(
            f"{what} cannot be written",
            where=str(error.filename or out),
            why=error.strerror or str(error),
            hint=hint,
        ) from error
