"""A process that joins its job as a rank, for the time in which it runs a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.artifact import load, read_manifest
from tcc.cli.later_modules import comm as comms
from tcc.errors import TccError, UserError
from tcc.runtime import Module


@contextmanager
def joined(
    artifact: Path, threads: int | None = None, *, always: bool = False
) -> Iterator[tuple[Module, "comms.Comm | None"]]:
    """Loads an artifact, joins the job as a rank if the model has collectives, and yields the
    module and the rank's communicator.

    The communicator is None for a model without collectives, unless `always` is true. If the code
    inside fails, all ranks learn why. Where a number of ranks has several plans, a rank joins
    before it loads the model, so that all ranks choose one plan. Raises UserError if the file
    cannot be loaded, and if the ranks do not meet.
    """
    comm = _early_comm(artifact)
    try:
        module = load(artifact, threads, comm=comm)
        if comm is None and (always or module.ranks >= 0):
            comm = _opened_comm()
        try:
            yield module, comm
        except TccError as error:
            if comm is not None:
                comm.abort(f"rank {comm.rank} failed: {error.what}")
            raise
    finally:
        if comm is not None:
            comm.close()


def _early_comm(artifact: Path) -> "comms.Comm | None":
    """Returns the communicator of a rank that has to choose among plans.

    Returns None if there is nothing to choose, or if this process is no rank.
    """
    if not any("plan" in variant for variant in read_manifest(artifact)["variants"]):
        return None
    try:
        return _shared(comms.open())
    except comms.CommError:
        return None  # a model with collectives then says why


def _opened_comm() -> "comms.Comm":
    try:
        return _shared(comms.open())
    except comms.CommError as error:
        raise UserError(
            "the model has collectives, and its ranks do not meet",
            why=error,
            hint="start all of them on this host with --nproc, or by mpirun, torchrun or srun",
        ) from error


def _shared(comm: "comms.Comm") -> "comms.Comm":
    comm.share()
    return comm
