"""Dumps and timings of a compile: the model's text after each pass, and the time of each pass.

The pass manager and the driver call a `Trace`; nothing else prints or writes while compiling.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tcc.errors import file_errors
from tcc.frozen import frozen


@frozen
class Timing:
    """The wall seconds of one stage, its inner stages included.

    `depth` counts the stages around it.
    """

    stage: str
    seconds: float
    depth: int


class Stopped(Exception):
    """The compile ended after the step that `--stop-after` names; `form` is the model's form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form


# Called with the name of a stage as it begins, and later with a function that returns how much of
# the stage's work is done, and all of it.
Progress: TypeAlias = Callable[..., None]


@dataclass(slots=True)
class Trace:
    """The dumps, timings and progress of one compile.

    `folder` receives numbered text files and is made if it is missing; None writes nothing.
    `progress` is called as `Progress` describes.  With `verifying` every changed
    form is verified.  The compile ends after the step `last`.
    """

    folder: Path | None = None
    progress: Progress | None = None
    verifying: bool = False
    last: str = ""
    _timings: list[Timing] = field(default_factory=list)
    _depth: int = 0
    _written: int = 0
    _text: str = ""

    def __post_init__(self) -> None:
        if self.folder is not None:
            with file_errors("cannot make the dump folder", self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Returns the stages so far, in the order in which they began."""
        return tuple(self._timings)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times its block under `name`; stages nest."""
        if self.progress is not None:
            self.progress(name)
        index = len(self._timings)
        self._timings.append(Timing(name, 0.0, self._depth))
        self._depth += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            self._depth -= 1
            self._timings[index] = Timing(name, time.perf_counter() - started, self._depth)

    def counting(self, count: Callable[[], tuple[int, int]]) -> None:
        """Reports the work of the stage that runs: `count` returns (kernels done, all kernels).

        Another thread may call `count` at any time until the next stage begins.
        """
        if self.progress is not None:
            self.progress(self._timings[-1].stage, count)

    def end(self, name: str, form: Any) -> None:
        """Raises `Stopped` if the user asked to stop after step `name`, whose result is `form`."""
        if name == self.last:
            raise Stopped(form)

    def dump(self, name: str, text: Callable[[], str]) -> None:
        """Writes `text()` to `NN-name.txt` if dumping and if it differs from the last text."""
        if self.folder is None:
            return
        content = text()
        if content == self._text:
            return
        self._text = content
        path = self.folder / f"{self._written:02}-{name}.txt"
        self._written += 1
        with file_errors("cannot write a dump", path):
            path.write_text(content, encoding="utf-8")


def timing_table(timings: tuple[Timing, ...]) -> str:
    """Returns the timings as lines `   seconds  share  stage`, nested stages indented."""
    seconds = sum(item.seconds for item in timings if item.depth == 0) or 1.0
    return "\n".join(
        f"{item.seconds:9.3f} s {item.seconds / seconds:6.1%}  {'  ' * item.depth}{item.stage}"
        for item in timings
    )
