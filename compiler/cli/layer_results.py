"""What a check layer by layer finds, as data, as a table, and as a model that shows the fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tcc.errors import UserError
from tcc.frontends.onnx.pieces import PieceModel
from tcc.ir.op import Array
from tcc.record import record

FAULTS = ("wrong", "refused", "failed")  # verdicts that a node is to blame for


@record
class Finding:
    """How one output of one node compares.

    `verdict` is ok, wrong (the node's own fault), follows (what it reads is wrong already),
    rounding (it agrees when it is given exactly what the reference was), refused or failed (it does
    not compile; the process that ran it ended), or unseen (no reference has it).
    """

    node: int
    name: str
    op: str
    output: str
    error: float
    allowed: float
    inputs_right: bool
    verdict: str
    why: str = ""


@record
class LayerRange:
    """Layers `first` to `last` of a model, with what they were given: what shows a fault."""

    first: int
    last: int
    outputs: tuple[str, ...]
    arrays: Mapping[str, Array]
    fixed: frozenset[str]
    allowed: float


@record
class Report:
    """What a check found: a row for each value of each node that was reached, the layers that
    only fail together (`joined`), and the smallest piece that shows the first fault."""

    findings: tuple[Finding, ...]
    joined: tuple[str, ...] = ()
    fault: LayerRange | None = None
    references: tuple[str, ...] = ()
    compiles: int = 0

    @property
    def wrong(self) -> Finding | None:
        """The first node that is wrong by itself."""
        return next((f for f in self.findings if f.verdict in FAULTS), None)


def write_reproduction(model: PieceModel, piece: LayerRange, folder: Path) -> str:
    """Writes `model.onnx` and the arrays it was given; returns the command that shows the fault."""
    span = range(piece.first, piece.last)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = model.write(folder / "model.onnx", span, piece.arrays, piece.outputs, piece.fixed)
        words = ["tcc", "verify", "model.onnx", "--tolerance", f"{piece.allowed:g}"]
        for number, name in enumerate(names):
            array = piece.arrays[name]  # strings without pickle, which is not read again
            stored = array.astype(str) if array.dtype == object else array
            np.save(folder / f"input{number}.npy", stored)
            words += ["--input", f"{name}=@input{number}.npy"]
        command = " ".join(map(_quoted, words))
        (folder / "command.txt").write_text(command + "\n")
    except OSError as error:
        raise UserError("cannot write there", where=str(folder), why=str(error)) from error
    return command


def _quoted(word: str) -> str:
    plain = all(c.isalnum() or c in "=@._-/" for c in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"


def finding_lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    """A table: a row for each value, under one line of titles."""
    rows = [("node", "op", "error", "allowed", "inputs", "verdict", "name", "output")]
    for item in findings:
        inputs = "right" if item.inputs_right else "wrong"
        sizes = (f"{item.error:.2e}", f"{item.allowed:.1e}")
        rows.append((str(item.node), item.op, *sizes, inputs, item.verdict, item.name, item.output))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
