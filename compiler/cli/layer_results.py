"""Results of a check layer by layer: as data, as a table, and as a model that shows the fault."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tcc.cli.arrays import save_array
from tcc.errors import file_errors
from tcc.frontends.onnx.pieces import PieceModel
from tcc.frozen import frozen
from tcc.ir.op import NamedArrays
from tcc.runtime.terminal import Table

FAULTS = ("wrong", "refused", "failed")  # verdicts that say that the node itself is at fault


@frozen
class Finding:
    """The result of comparing one output of a node with the reference.

    The values of `verdict` are:

    - ok
    - wrong: the fault is the node's own
    - follows: the output is wrong, but an input of the node is wrong already
    - rounding: the node agrees when it runs on exactly the reference's inputs
    - refused: it does not compile
    - failed: its process ended
    - unseen: no reference computes it
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


@frozen
class Piece:
    """The layers of `span` as a model with `outputs`.

    Its inputs in `fixed` are constants.
    """

    span: range
    outputs: tuple[str, ...]
    fixed: frozenset[str]


@frozen
class Fault:
    """A piece that shows a fault, with its input arrays and the error that was allowed."""

    piece: Piece
    arrays: NamedArrays
    allowed: float


@dataclass(slots=True)
class Report:
    """The results of a check.

    `findings` has a row for each value of each checked node.  `joint_layers` fail only when they
    are compiled together.  `fault` is the smallest piece that shows the first fault.  `references`
    names the references that ran, and `compiles` counts the compiled pieces.
    """

    findings: list[Finding] = field(default_factory=list)
    joint_layers: tuple[str, ...] = ()
    fault: Fault | None = None
    references: dict[str, None] = field(default_factory=dict)
    compiles: int = 0

    @property
    def wrong(self) -> Finding | None:
        """Returns the finding of the first node that is itself at fault, or None."""
        return next((f for f in self.findings if f.verdict in FAULTS), None)


def write_reproduction(model: PieceModel, fault: Fault, folder: Path) -> str:
    """Writes `model.onnx` and its input arrays; returns the command that shows the fault."""
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


def finding_table(findings: Iterable[Finding]) -> Table:
    """Returns a table with a row for each value."""
    rows = [("node", "op", "error", "allowed", "inputs", "verdict", "name, output")]
    for item in findings:
        inputs = "right" if item.inputs_right else "wrong"
        sizes = (f"{item.error:.2e}", f"{item.allowed:.1e}")
        names = f"{item.name}, {item.output}"
        rows.append((str(item.node), item.op, *sizes, inputs, item.verdict, names))
    return Table(rows)
