"""Files that appear whole: they are written in a folder beside their places, and renamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.errors import ToolError
from tcc.temporary import locked_folder


@contextmanager
def folder_beside(out: Path, what: str) -> Iterator[Path]:
    """A folder for a moment on the disk of `out`; those that killed processes left beside it are
    removed.  Raises ToolError, with `what` cannot be written, where the disk refuses anything
    meanwhile."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(".tcc-made-", out.parent) as made:
            yield made
    except OSError as error:
        raise ToolError(
            f"{what} cannot be written",
            where=str(error.filename or out),
            why=error.strerror or str(error),
            hint="choose another place with -o",
        ) from error
