"""A terminal for tests: commands write to it in this process, and pyte shows its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import pyte
from tcc import cli

_LINES = 2000
_END = b"\0"  # pyte shows nothing for it, and no text has it


class Terminal:
    """A pseudo-terminal with some columns; `written` holds all that programs wrote to it."""

    def __init__(self, columns: int) -> None:
        self.columns, self.written = columns, ""
        self._screen = pyte.Screen(columns, _LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._change = threading.Condition()

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """Yields a file that writes to the terminal; all of it has been read at the end."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", _LINES, self.columns, 0, 0))
        reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        reader.start()
        try:
            with open(slave, "w", encoding="utf-8") as file:
                try:
                    yield file
                finally:
                    # Some systems drop unread output when the last writer closes.
                    file.flush()
                    os.write(slave, _END)
                    reader.join()
        finally:
            reader.join()
            os.close(master)

    def _read(self, master: int) -> None:
        while True:
            try:
                data = os.read(master, 1 << 16)
            except OSError:  # Linux reports this when the last writer has closed it
                return
            with self._change:
                self._stream.feed(data)
                self.written += data.removesuffix(_END).decode("utf-8", "replace")
                self._change.notify_all()
            if not data or data.endswith(_END):
                return

    def wait_for(self, text: str) -> None:
        """Waits until a program has written `text`; fails after a minute."""
        with self._change:
            assert self._change.wait_for(lambda: text in self.written, 60), self.written

    def execute(self, *arguments: str) -> int:
        """Runs a command line of tcc with this terminal as its streams; returns its exit code."""
        with self.streams():
            return cli.execute(arguments)

    @contextmanager
    def streams(self) -> Iterator[None]:
        """Makes this terminal the streams of the process."""
        before = sys.stdout, sys.stderr
        with self.opened() as file:
            sys.stdout = sys.stderr = file
            try:
                yield
            finally:
                sys.stdout, sys.stderr = before

    @property
    def display(self) -> list[str]:
        """Returns the lines of the screen, without the empty ones at its end."""
        lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def rendered(lines: Sequence[str]) -> str:
    """Returns lines of a screen as one text."""
    return "\n".join(lines)
