"""The commands together, and what becomes of their errors.

Exit codes: 0 ok, 1 a check failed, 2 usage or input, 3 a tool is missing or failed, 70 a fault of
tcc, 130 interrupted (also by the reader of its output, who went).
"""

import atexit
import errno
import gc
import os
import signal
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer

import click
from tcc import __version__
from tcc.cli import bench, compile, doctor, inspect, ops, run, verify
from tcc.errors import InternalError, TccError, UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_USER = UserError.exit_code
_INTERRUPTED = 128 + signal.SIGINT
_REPORT = "this is a fault of tcc: report it with the model and the output of `tcc doctor`"


@dataclass(slots=True)
class CliSession:
    """What outlives argument parsing, for the handling of errors."""

    debug: bool = False


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tcc")
@click.option("-v", "--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_obj
def cli(session: CliSession, debug: bool) -> None:
    """Compiles trained models ahead of time into one native file each.

    \b
    Example:
      tcc compile model.onnx && tcc run model.so
    """
    session.debug = debug


for _command in (
    bench.bench, compile.compile, doctor.doctor, inspect.inspect, ops.ops, run.run, verify.verify
):  # fmt: skip
    cli.add_command(_command)


def execute(args: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; errors go to stderr."""
    session = CliSession()
    try:
        # Closed by whoever started this; these stay open until the process ends.
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        result = cli.main(args, prog_name="tcc", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show(sys.stderr)
        return _USER
    except (KeyboardInterrupt, click.Abort):
        return _failed(session, "interrupted", _INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # the second is click's own answer to the first
        _print_no_more()
        return _INTERRUPTED
    except InternalError as error:
        return _failed(session, f"internal error: {error}\n  {_REPORT}", error.exit_code)
    except TccError as error:
        return _failed(session, f"error: {error}", error.exit_code)
    except OSError as error:
        if error.errno not in _FULL:
            return _internal(session, error)
        _print_no_more()
        return _failed(session, f"error: something cannot be written: {error.strerror}", _USER)
    except MemoryError as error:
        why = _first_line(error) or "no more is granted to this process"
        return _failed(session, f"error: there is not enough memory\n  because: {why}", _USER)
    except Exception as error:
        return _internal(session, error)
    return result if isinstance(result, int) else 0


def main() -> None:
    """The console command `tcc`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is half made is removed
    sys.unraisablehook = _unraisable
    gc.freeze()
    gc.set_threshold(100_000)  # graphs are large and have few cycles
    code = execute()
    atexit.register(_leave, code)
    sys.exit(code)


def _unraisable(given: "sys.UnraisableHookArgs") -> None:
    """An interrupt that came inside of a finaliser, which Python forgets, comes again behind it."""
    if issubclass(given.exc_type, KeyboardInterrupt):
        # SIGINT may be ignored: a shell starts what runs in the background so
        Timer(0.01, interrupt_main, (signal.SIGTERM,)).start()
    else:
        sys.__unraisablehook__(given)


def _leave(code: int) -> None:
    """Ends the process when all other handlers have run: to free a large model's graph object by
    object takes a second, and the system frees it at once."""
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _internal(session: CliSession, error: Exception) -> int:
    name = type(error).__name__
    message = f"internal error: {name}: {_first_line(error)}\n  {_REPORT}"
    return _failed(session, message, InternalError.exit_code)


def _print_no_more() -> None:
    """Nothing may be flushed at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(session: CliSession, message: str, code: int) -> int:
    if session.debug:
        traceback.print_exc()
    print(message, file=sys.stderr)
    return code
