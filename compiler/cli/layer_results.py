"""What a check layer by layer finds, as data, as a table, and as a model that shows the fault."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tcc.cli.arrays import save_array
from tcc.cli.show import aligned
from tcc.errors import file_errors
from tcc.frontends.onnx.pieces import PieceModel
from tcc.ir.op import NamedArrays
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
class Piece:
    """The layers of `span` as a model with `outputs`; what it reads of `fixed` is constant."""

    span: range
    outputs: tuple[str, ...]
    fixed: frozenset[str]


@record
class Fault:
    """A piece with what it was given: what shows a fault."""

    piece: Piece
    arrays: NamedArrays
    allowed: float


@dataclass(slots=True)
class Report:
    """What a check found: a row for each value of each node that was reached, the layers that
    only fail together (`joined`), and the smallest piece that shows the first fault; the names of
    the references that ran, and how many pieces were compiled."""

    findings: list[Finding] = field(default_factory=list)
    joined: tuple[str, ...] = ()
    fault: Fault | None = None
    references: dict[str, None] = field(default_factory=dict)
    compiles: int = 0

    @property
    def wrong(self) -> Finding | None:
        """The first node that is wrong by itself."""
        return next((f for f in self.findings if f.verdict in FAULTS), None)


def write_reproduction(model: PieceModel, fault: Fault, folder: Path) -> str:
    """Writes `model.onnx` and the arrays it was given; returns the command that shows the fault."""
    piece = fault.piece
    with file_errors("cannot write there", folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = model.write(
            folder / "model.onnx", piece.span, fault.arrays, piece.outputs, piece.fixed
        )
        words = ["tcc", "verify", "model.onnx", "--tolerance", f"{fault.allowed:g}"]
        for number, name in enumerate(names):
            save_array(folder / f"input{number}.npy", fault.arrays[name])
            words += ["--input", f"{name}=@input{number}.npy"]
        command = shlex.join(words)
        (folder / "command.txt").write_text(command + "\n")
    return command


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """A table: a row for each value, under one line of titles."""
    rows = [("node", "op", "error", "allowed", "inputs", "verdict", "name", "output")]
    for item in findings:
        inputs = "right" if item.inputs_right else "wrong"
        sizes = (f"{item.error:.2e}", f"{item.allowed:.1e}")
        rows.append((str(item.node), item.op, *sizes, inputs, item.verdict, item.name, item.output))
    return aligned(rows, str.ljust)
