"""Shows what a command is doing, on stderr: its stage, kernels done of all kernels, and a clock.

A terminal has one line, which is rewritten five times a second. Elsewhere a line is printed every
ten seconds.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tcc.cli.log import LOG, print_event
from tcc.cli.show import say
from tcc.errors import printable
from tcc.later import later
from tcc.runtime import terminal

if TYPE_CHECKING:
    from rich import console, live, text
else:
    console, live, text = later("rich.console"), later("rich.live"), later("rich.text")

# Returns (work done, all work).
Count: TypeAlias = Callable[[], tuple[int, int]]
# The seconds between two looks at the work: on a terminal, and elsewhere.
_PERIODS = (0.2, 10.0)
# The least columns of a title, if the terminal is too narrow for all of a line.
_TITLE = 12
# The stages of a compile in the words of a user, and the names that `Trace` has for them.
_STAGES = MappingProxyType(
    {
        "reading the model": "import",
        "measuring layers in int8": "measure int8",
        "simplifying the graph": "optimise,settle-sizes,small-top-k,legalize-calls,"
        "int8-weight-matmuls,int8-matmuls,split-zero-points,requantize,grouped-gemms,"
        "fold-constants,weight-quant-matmuls,split-level-zeros,canonicalize,merge-equal-nodes,"
        "fold-factors,decompose-transposed,shrink,fold-constants-again,canonicalize-again,"
        "merge-equal-nodes-again,nest-concats,scatter-rows,share-tables,check-indices,"
        "drop-dead-nodes,bind-states",
        "dividing the graph among ranks": "shard",
        "searching for cheaper sums": "skip-zeros,legalize-calls-again,move-resamplings,"
        "merge-contractions,derive",
        "choosing kernels": "lower,pack-io,compute-constants,name-handles,partition,merge-groups,"
        "assign-layouts,tabulate,choose-layouts,narrow-storage,level-bytes,exact-weights,"
        "compact-buffers,"
        "divide-sums,sign-operands,turn-operands",
        "planning memory": "emit,align-buffers,update-in-place,order-steps,share-halos,"
        "overlap-collectives,plan-arena,direct-where-small,describe-ports",
        "generating code": "generate code",
        "linking": "link",
    }
)
_WORDS = MappingProxyType(
    {name: words for words, names in _STAGES.items() for name in names.split(",")}
)


class Progress:
    """The work of a command: a title, the stage that runs, and the time since the start.

    A call begins a stage, which may have a count of its work. `clock` returns seconds.
    """

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock, self._start = printable(title), clock, clock()
        # (stage, its words, its count): one value, because another thread reads it.
        self._state: tuple[str, str, Count] = "", "", _no_count

    def __call__(self, stage: str, count: Count | None = None) -> None:
        begins = stage != self._state[0]
        target, _, name = stage.rpartition(": ")
        words = _WORDS.get(name)
        text = stage if words is None else ": ".join(filter(None, (target, words)))
        self._state = stage, text, count or _no_count
        if begins and LOG.level == "json":
            print_event("stage", title=self._title, stage=stage, text=text)
        elif begins and LOG.level == "verbose":
            internal = f" ({name})" if words else ""
            say(f"{self._clock() - self._start:8.2f} s  {text}{internal}", err=True)

    def show(self) -> None:
        """Prints the present state as a line, or as an event."""
        if LOG.level != "json":
            say(self.line(None), err=True)
            return
        stage, _, count = self._state
        kernels, all_kernels = count()
        print_event("progress", title=self._title, stage=stage, done=kernels, all=all_kernels)

    def line(self, width: int | None) -> str:
        """Returns the present state in at most `width` columns; a long title is shortened."""
        seconds = int(self._clock() - self._start)
        _, words, count = self._state
        kernels, all_kernels = count()
        work = f", {kernels} of {all_kernels} kernels" if all_kernels else ""
        state = f": {words}{work}" if words else ""
        head = f"{seconds // 60}:{seconds % 60:02}  "
        if width is None:
            return head + self._title + state
        room = max(width - len(head) - len(state), _TITLE)
        return terminal.shortened(head + terminal.shortened(self._title, room) + state, width)


def _no_count() -> tuple[int, int]:
    """Returns the count of a stage whose work is not counted."""
    return 0, 0


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Yields a function that begins a stage, and shows the stages until the block ends.

    With --quiet nothing is shown.
    """
    state = Progress(title)
    if LOG.level == "quiet":
        yield state
        return
    moves = terminal.moves_cursor(sys.stderr) and LOG.level != "json"
    with _rewritten() if moves else nullcontext() as line:
        end = threading.Event()

        def watch() -> None:
            with suppress(OSError):  # nobody reads stderr any more
                while not end.wait(_PERIODS[not moves]):
                    if line is None:
                        state.show()
                    else:
                        width = terminal.columns(sys.stderr)
                        line.update(text.Text(state.line(width), no_wrap=True), refresh=True)

        watcher = threading.Thread(target=watch, name="tcc progress", daemon=True)
        watcher.start()
        try:
            yield state
        finally:
            end.set()
            watcher.join()


def _rewritten() -> Any:
    """Returns a line at the bottom of the terminal, which disappears at the end of its context."""
    screen = console.Console(stderr=True)
    # Notes on stderr go above the line.  Results may go elsewhere than to the terminal.
    return live.Live(console=screen, auto_refresh=False, transient=True, redirect_stdout=False)
