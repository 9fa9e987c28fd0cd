"""Artifacts as files, with errors of tcc; `tcc.runtime.artifact_file` reads them.

No function but `load` loads an artifact's code.  A file may be hostile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcc import runtime
from tcc.bounded import parse_json
from tcc.errors import RunTimeoutError, ToolError, UserError
from tcc.file_kind import file_kind
from tcc.runtime import Module, artifact_file
from tcc.runtime.artifact_file import ArtifactFile, WeightRange
from tcc.runtime.comm import Comm
from tcc.runtime.reports import InputError, MissingLibraryError


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


def load(
    path: str | Path,
    threads: int | None = None,
    *,
    comm: Comm | None = None,
    check: bool = False,
) -> Module:
    """Loads an artifact; `threads` bounds its kernels' threads (None: all CPUs it may use).

    Code, tables and manifest are compared with a hash in the file.  Weights may be large, so only
    their size and the hash that the file names are checked; with `check`, or with TCC_VERIFY=1, the
    weights are read and compared with that hash too.  No hash proves who made the file.

    A model with collectives runs on `comm`, which `tcc.runtime.comm.open()` returns; without `comm`
    it runs on the comm that the process shares at the time of the run.  A file with plans for
    several numbers of ranks is loaded for the rank of `comm`, else of the shared comm, else for the
    rank that a launcher names, else for one rank.

    Raises UserError for a file that is no artifact, or that this machine cannot run.
    """
    # The manifest is read first, because its errors are clearer than the system loader's.
    manifest = read_manifest(Path(path))
    verify_image(Path(path))
    weights = find_weights(Path(path), manifest) if check else None
    if weights is not None:
        verify_weights(weights)
    return runtime.load(path, threads, comm=comm, error=UserError, late=RunTimeoutError)


def _file(path: Path) -> ArtifactFile:
    return ArtifactFile(path, parse_json, file_kind)


@input_errors()
def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of the artifact at `path`.

    Raises UserError where the file is missing, is no artifact, is cut short, or has another ABI.
    """
    return _file(path).manifest()


@input_errors()
def verify_image(path: Path) -> None:
    """Reads the artifact's image, all but its weights; raises UserError unless the hash of the
    image is the hash in its seal."""
    _file(path).verify_image()


@input_errors()
def read_program(path: Path, variant: int = 0) -> bytes:
    """Returns the encoded program of a variant; raises UserError for a file that is no artifact."""
    return _file(path).program(variant)


@input_errors()
def read_listings(path: Path) -> dict[str, str]:
    """Returns the kernels' LLVM IR or Triton source by symbol; empty where none is kept.

    Raises UserError where the file is missing, is no artifact or is damaged.
    """
    return _file(path).listings()


@input_errors()
def code_bytes(path: Path) -> int:
    """Returns the bytes of machine code in an artifact: kernels and runtime, without code for GPUs.

    Raises UserError where the file is missing, is no artifact or is damaged.
    """
    return _file(path).code_bytes()


@input_errors()
def needed_glibc(path: Path) -> str:
    """Returns the oldest glibc with every function that the artifact calls, as in `glibc 2.17`.

    Raises UserError where the file is missing, is no artifact or is damaged.
    """
    return _file(path).needed_glibc()


@input_errors()
def find_weights(path: Path, manifest: dict[str, Any]) -> WeightRange | None:
    """Returns the place of the artifact's weights; None for a model without weights.

    Raises UserError where the weights are missing or belong to another model.
    """
    return artifact_file.find_weights(path, manifest)


@input_errors()
def verify_weights(weights: WeightRange) -> None:
    """Reads all weights and raises UserError unless they have the hash in the manifest."""
    artifact_file.verify_weights(weights)
