"""Facts about an artifact's kernels from its manifest, checked: the file may be untrusted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcc.errors import UserError
from tcc.runtime import kernel_facts as runtime_facts
from tcc.runtime.kernel_facts import KernelFacts


def kernel_facts(manifest: dict[str, Any], path: Path, variant: int = 0) -> KernelFacts:
    """Returns the facts of a variant from `manifest`, which belongs to the artifact at `path`.

    Raises UserError where facts are missing or malformed.
    """
    with reading_manifest(path, "describe its kernels"):
        return runtime_facts.kernel_facts(manifest["variants"][variant])


@contextmanager
def reading_manifest(path: Path, what: str) -> Iterator[None]:
    """Turns errors from reading the manifest of the artifact at `path` into UserError.

    The message says that the manifest does not do `what`.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, OverflowError, StopIteration) as error:
        raise UserError(
            f"the artifact's manifest does not {what}",
            where=path,
            why=f"{type(error).__name__}: {error}",
            hint="compile the model again",
        ) from error
