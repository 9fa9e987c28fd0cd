"""The settings of inputs in a compile."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcc.artifact import input_errors
from tcc.later import later

if TYPE_CHECKING:
    from tcc.runtime import preprocess
else:
    preprocess = later("tcc.runtime.preprocess")


def preprocess_entry(path: Path | None, names: Collection[str]) -> dict[str, Any]:
    """Returns the part of the manifest that --preprocess gives; empty without a file.

    `names` are those of the model's inputs. Raises UserError for a file that is refused.
    """
    if path is None:
        return {}
    with input_errors():
        return {"preprocess": preprocess.read_preprocess(path, names)}
