"""The deadline of commands that run models, and runs that signals and deadlines can interrupt."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from threading import Thread
from typing import Any, TypeVar

import click
from tcc.cli.choices import Command, Seconds
from tcc.errors import UserError

Result = TypeVar("Result")


class _LateError(BaseException):
    """Raised when the deadline has passed.

    It is no subclass of Exception, so that no `except Exception` catches it.
    """


def timeout_flag(command: Command) -> Command:
    """Adds `--timeout` to a command.

    A command that takes longer closes its contexts and raises UserError.
    """

    @click.option(
        "--timeout", type=Seconds(), help="Seconds that the command may take, with compiling."
    )
    @wraps(command)
    def limited(*args: Any, timeout: float | None, **values: Any) -> Any:
        with _deadline(timeout):
            return command(*args, **values)

    return limited  # type: ignore[return-value]


@contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _LateError

    old_handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    except _LateError:
        raise UserError(
            "the command took too long", where=f"--timeout {seconds:g}", hint="allow more seconds"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


def interruptible(work: Callable[[], Result]) -> Result:
    """Returns the result of `work`, which runs on a daemon thread.

    A signal or the deadline interrupts the wait for it anywhere, and the end of the process does
    not wait for the thread.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result()
