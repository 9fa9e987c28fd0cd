"""The group of commands, and the handling of their errors.

Exit codes: 0 ok, 1 a check failed, 2 usage or input, 3 a tool is missing or failed, 70 a fault of
tcc, 130 interrupted (also where the reader of the output has closed its pipe).
"""

import atexit
import gc
import os
import signal
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Timer
from types import MappingProxyType

import click
from click.shell_completion import CompletionItem
from tcc import __version__
from tcc.cli.choices import switch
from tcc.cli.log import LOG, level_flags, print_event, read_level
from tcc.errors import DISK_ERRORS, InternalError, TccError, UserError
from tcc.later import later
from tcc.runtime import terminal

_USER = UserError.exit_code
_INTERRUPTED = 128 + signal.SIGINT
_REPORT = "this is a fault of tcc: report it with the model and the output of `tcc doctor`"
_EXIT_CODES = (
    "Exit codes: 0 ok, 1 a check failed, 2 usage or input, 3 a tool is missing or failed, "
    "70 a fault of tcc, 130 interrupted."
)


# The name of each command with the first sentence of its help.  The command is the function NAME of
# the module `tcc.cli.NAME`; the table spares importing the modules of all commands.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "bench": "Times MODEL, an ONNX file or an artifact, alone or against peers.",
        "compile": "Compiles MODEL, such as an ONNX or a GGUF file, into one shared library.",
        "completion": "Prints the script that completes command lines of tcc in SHELL.",
        "doctor": "Shows what tcc finds on this machine: versions, linkers, processor.",
        "inspect": "Shows what ARTIFACT, or the one compiled from an ONNX file, holds.",
        "ops": "Lists the operators that tcc knows, or says what it knows of NAMES.",
        "plan": "Divides the model file MODEL among ranks, and shows the plan.",
        "profile": "Shows where the time of ARTIFACT's runs goes, by step and by thread.",
        "quantize": "Quantises convolutions and matrix products of the ONNX file MODEL to int8.",
        "run": "Runs MODEL, an artifact or an ONNX file, once.",
        "tune": "Measures other choices for the model file MODEL on this machine.",
        "verify": "Compares ARTIFACT (default: compiled now) with the model file MODEL.",
    }
)


class CliSession:
    """State that outlives argument parsing, for the handling of errors."""

    debug = False


class _Commands(click.Group):
    """The group of the commands in `COMMANDS`; it imports a command's module at first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            command = getattr(later(f"tcc.cli.{cmd_name}"), cmd_name)
            command.params += level_flags()
            command.epilog, command.context_class = _EXIT_CODES, _Context
            self.add_command(command)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands that begin with `incomplete`, without importing them."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in names), *options]


class _Formatter(click.HelpFormatter):
    """A help page whose examples fit the terminal too."""

    def getvalue(self) -> str:
        lines = super().getvalue().splitlines()
        return "\n".join([*terminal.lines(lines, self.width), ""])


class _Context(click.Context):
    formatter_class = _Formatter


_Commands.context_class = _Context


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXIT_CODES,
    params=level_flags(),
)
@click.version_option(__version__, prog_name="tcc")
@switch("--debug", "Show the Python traceback of an error.")
@click.pass_obj
def cli(session: CliSession, debug: bool) -> None:
    """Compiles trained models ahead of time into one native file each.

    \b
    Example:
      tcc compile model.onnx && tcc run model.so
    """
    session.debug = debug


def execute(args: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; errors go to stderr."""
    session = CliSession()
    try:
        # The parent may have closed the streams; the replacements stay open until the end.
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        read_level()
        result = cli.main(args, prog_name="tcc", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except click.ClickException as error:
        if LOG.level == "json":
            return _failed(session, f"error: {error.format_message()}", _USER)
        error.show(sys.stderr)
        return _USER
    except (KeyboardInterrupt, click.Abort):
        return _failed(session, "interrupted", _INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        # click ends a completion by exit code 0, and turns a broken pipe into exit code 1.
        if getattr(error, "code", 1) == 0:
            return 0
        _print_no_more()
        return _INTERRUPTED
    except InternalError as error:
        return _failed(session, f"internal error: {error}\n  {_REPORT}", error.exit_code)
    except TccError as error:
        return _failed(session, f"error: {error}", error.exit_code)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
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
    """Runs the process's command line, and ends the process."""
    # SIGTERM raises KeyboardInterrupt, so that contexts close and remove partial files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _unraisable
    gc.freeze()
    # Collections are rare, because graphs have many objects and few cycles.
    gc.set_threshold(1_000_000)
    code = execute()
    atexit.register(_leave, code)
    sys.exit(code)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    """Repeats an interrupt that came inside of a finaliser, where Python drops exceptions."""
    if issubclass(args.exc_type, KeyboardInterrupt):
        # The interrupt is SIGTERM, because a shell starts background jobs with SIGINT ignored.
        Timer(0.01, interrupt_main, (signal.SIGTERM,)).start()
    else:
        sys.__unraisablehook__(args)


def _leave(code: int) -> None:
    """Ends the process when all other exit handlers have run.

    Python would take a second to free a large model's graph object by object; the system frees it
    at once.
    """
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
    """Sends stdout to /dev/null, so that a flush at exit cannot fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(session: CliSession, message: str, code: int) -> int:
    if session.debug:
        traceback.print_exc()
    if LOG.level == "json":
        print_event("error", text=message, exit_code=code)
        return code
    for line in terminal.lines(message.splitlines(), terminal.columns(sys.stderr)):
        print(line, file=sys.stderr)
    return code
