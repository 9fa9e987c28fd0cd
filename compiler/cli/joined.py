"""A process that joins its job as a rank, for the time in which it runs a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tcc.errors import TccError, UserError
from tcc.later import later
from tcc.runtime import Module

if TYPE_CHECKING:
    from tcc.runtime import comm as comms
else:
    comms = later("tcc.runtime.comm")


@contextmanager
def joined(module: Module, *, always: bool = False) -> Iterator["comms.Comm | None"]:
    """Joins the job as a rank if the model has collectives, and yields the rank's communicator.

    Yields None for a model without collectives, unless `always` is true. If the code inside fails,
    all ranks learn why. Raises UserError if the ranks do not meet.
    """
    if module.ranks < 0 and not always:
        yield None
        return
    try:
        comm = comms.open()
    except comms.CommError as error:
        raise UserError(
            "the model has collectives, and its ranks do not meet",
            why=error,
            hint="start all of them on this host with --nproc, or by mpirun, torchrun or srun",
        ) from error
    with comm:
        comm.share()
        try:
            yield comm
        except TccError as error:
            comm.abort(f"rank {comm.rank} failed: {error.what}")
            raise
