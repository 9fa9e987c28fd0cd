"""The ranks of a job as processes of this host: `tcc run --nproc`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tcc.cli.show import say
from tcc.errors import UserError
from tcc.runtime import rank_processes
from tcc.runtime.rank_processes import RankFailedError

_MAIN = "from tcc.__main__ import main; main()"


def check_pin(nproc: int | None, pin: bool) -> None:
    """Raises UserError for --pin without --nproc."""
    if pin and not nproc:
        raise UserError("there are no ranks to pin", where="--pin", hint="--nproc N starts N ranks")


def words_of(inputs: Sequence[str], flags: Mapping[str, Any]) -> list[str]:
    """Returns the words of a command line with `inputs`, and with the flags that have a value."""
    pairs = [*(("--input", text) for text in inputs), *flags.items()]
    return [f"{flag}={value}" for flag, value in pairs if value is not None]


def run_ranks(count: int, pin: bool, arguments: Sequence[str]) -> list[str]:
    """Runs `count` ranks of `tcc ARGUMENTS` as `rank_processes.run_ranks` does.

    Raises UserError with the exit code of the first rank that failed.
    """
    try:
        return rank_processes.run_ranks(
            count, pin, _MAIN, arguments, lambda line: say(line, err=True)
        )
    except RankFailedError as failure:
        error = UserError(failure.what, why=failure.why)
        error.exit_code = failure.exit_code
        raise error from failure
