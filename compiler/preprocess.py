"""The settings of inputs in a compile, and errors of inputs as errors of tcc."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcc.errors import ToolError, UserError
from tcc.later import later
from tcc.runtime.reports import InputError, MissingLibraryError

if TYPE_CHECKING:
    from tcc.runtime import preprocess
else:
    preprocess = later("tcc.runtime.preprocess")


@contextmanager
def input_errors(where: str = "") -> Iterator[None]:
    """Turns InputError into UserError, and the error of a missing library into ToolError.

    `where` replaces the place that the error names.
    """
    try:
        yield
    except InputError as error:
        kind = ToolError if isinstance(error, MissingLibraryError) else UserError
        raise kind(
            error.what, where=where or error.where, why=error.why, hint=error.hint
        ) from error


def preprocess_entry(path: Path | None, names: Collection[str]) -> dict[str, Any]:
    """Returns the part of the manifest that --preprocess gives; empty without a file.

    `names` are those of the model's inputs. Raises UserError for a file that is refused.
    """
    if path is None:
        return {}
    with input_errors():
        return {"preprocess": preprocess.read_preprocess(path, names)}
