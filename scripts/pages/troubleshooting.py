"""Writes the page of error messages from the texts that tests/errors holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HEAD = """# Troubleshooting

Every error of tcc says what failed, where, why, and what to do. This page lists the messages that
the tests hold, word for word, by command. Search for the first line of yours.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a check failed: results differ, or a gate was missed |
| 2 | the command line or an input is wrong |
| 3 | a tool is missing |
| 70 | tcc has a fault: please report it |
| 130 | the command was interrupted |
"""


@dataclass(frozen=True, slots=True)
class Message:
    """A message with the command that prints it; `text` has all its lines."""

    command: str
    headline: str
    text: str


def messages(folder: Path) -> list[Message]:
    """Returns the messages of a folder, by command and first line; equal texts once."""
    by_text: dict[str, Message] = {}
    for path in sorted(folder.glob("*.txt")):
        code, _, text = path.read_text(encoding="utf-8").partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        if not lines or not code.startswith("exit"):
            continue
        command = path.name.partition("-")[0]
        headline = lines[0].removeprefix("error: ")
        by_text.setdefault(text, Message(command, headline, f"{text.rstrip()}\n"))
    return sorted(by_text.values(), key=lambda m: (m.command, m.headline, m.text))


def page(rows: Iterable[Message]) -> str:
    """Returns the page in Markdown: a section for each command, a block for each message."""
    parts, command, headline = [_HEAD], "", ""
    for row in rows:
        if row.command != command:
            command, headline = row.command, ""
            parts.append(f"## tcc {command}\n")
        if row.headline != headline:
            headline = row.headline
            parts.append(f"### {_plain(headline)}\n")
        parts.append(f"```text\n{row.text}```\n")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Returns a text without the characters that Markdown reads."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text)
