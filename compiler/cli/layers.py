"""A model compared with a reference, layer by layer.

The check splits the graph's nodes into batches, each as large as the memory allows, and compiles a
batch once with all its values as outputs. Every batch begins with the reference's values, so errors
do not spread to the next batch.

If a value is wrong although the inputs of its node are right, the check compiles the node by
itself. If the node then agrees, the rounding of its inputs was the cause.

If all nodes agree and the model does not, the fault lies in how nodes are compiled together.
Bisection finds the shortest range of nodes that disagrees.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tcc.cli.drawn import drawn_model
from tcc.cli.layer_results import Fault, Finding, Piece, Report
from tcc.cli.peers.peer import Peer
from tcc.driver import compile_model, evaluate_model
from tcc.errors import TccError, ToolError, UserError
from tcc.frontends.onnx.pieces import Layer, PieceModel
from tcc.ir.op import Array, NamedArrays, Tolerance
from tcc.options import Options
from tcc.runtime.compare import Difference, compare

_MOST = 500  # a batch has at most this many layers, which bounds the time of one compile
# The number of copies of a value that exist at once: each of the two runtimes holds a copy, and
# sends a second copy to this process.
_COPIES = 4
# The allowed error of a node that is compiled by itself, relative to the largest value, in rounding
# units of its type.
_UNITS: Mapping[Tolerance, float] = {
    Tolerance.EXACT: 0,
    Tolerance.ELEMENTWISE: 16,
    Tolerance.ACTIVATION: 16,
    Tolerance.ACCUMULATE: 800,
}


@dataclass(slots=True)
class LayerCheck:
    """Checks one model; it writes its files to `folder`.

    `memory` bounds the bytes of values in memory, `allowed` the error relative to the largest
    value.  With `keep_going` a wrong node does not end the check.
    """

    model: PieceModel
    inputs: NamedArrays
    options: Options
    allowed: float
    memory: int
    threads: int
    folder: Path
    keep_going: bool
    progress: Callable[[str], None]
    _values: dict[str, Array] = field(default_factory=dict)
    _report: Report = field(default_factory=Report)
    _last_read: dict[str, int] = field(default_factory=dict)
    _unseen: list[tuple[int, int]] = field(default_factory=list)
    _last: Piece | None = None
    _names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Finds the last reader of each value, and the spans of layers that must stay together.

        The model's outputs count as read after the last layer. A span must stay together if a value
        that is no array, such as a sequence, leads from its first to its last layer.
        """
        layers = self.model.layers
        for number, layer in enumerate(layers):
            self._last_read.update(dict.fromkeys(layer.reads, number))
        self._last_read.update(dict.fromkeys(self.model.outputs, len(layers)))
        self._unseen = [
            (number, self._last_read.get(name, -1))
            for number, layer in enumerate(layers)
            for name in layer.writes
            if not self.model.seen(name)
        ]

    def run(self) -> Report:
        """Returns the report; raises UserError where not even one layer fits the memory."""
        self._values.update(self.inputs)
        begin, count = 0, len(self.model.layers)
        while begin < count and (self._report.fault is None or self.keep_going):
            end = self._batch_end(begin)
            begin = self._check(range(begin, end))
            self._forget(begin)
        if begin == count and self._report.fault is None:
            self._report.joint_layers = self._joint_layers()
        return self._report

    # ---- batches ----------------------------------------------------------------------------

    def _batch_end(self, begin: int) -> int:
        """Returns the end of the batch that starts at `begin`.

        The batch fits the memory, and ends where the graph can be split.
        """
        held_bytes = sum(value.nbytes for value in self._values.values())
        end, last = begin, begin
        while end < len(self.model.layers) and end - begin < _MOST:
            held_bytes += _COPIES * sum(map(self.model.bytes_of, self.model.layers[end].writes))
            if held_bytes > self.memory and last > begin:
                break
            end += 1
            if self._can_end(begin, end):
                last = end
        if last == begin:  # nothing fits, or the graph cannot be split: take the fewest layers
            last = begin + 1
            while last < len(self.model.layers) and not self._can_end(begin, last):
                last += 1
        return last

    def _can_end(self, begin: int, end: int) -> bool:
        return not any(begin <= writer < end <= reader for writer, reader in self._unseen)

    def _leaving(self, span: range) -> tuple[str, ...]:
        """Returns the names of the span's values that later layers read or the model outputs."""
        names = dict.fromkeys(n for i in span for n in self.model.layers[i].writes)
        return tuple(name for name in names if self._last_read.get(name, -1) >= span.stop)

    def _shown(self, span: range) -> tuple[str, ...]:
        """Returns the names of the values that leave the span and are arrays."""
        return tuple(filter(self.model.seen, self._leaving(span)))

    def _forget(self, begin: int) -> None:
        """Drops the values that no layer from `begin` on reads."""
        for name in [n for n in self._values if self._last_read.get(n, -1) < begin]:
            del self._values[name]

    # ---- one batch --------------------------------------------------------------------------

    def _check(self, span: range) -> int:
        """Checks the layers of `span`, or some from its start; returns the next layer to check."""
        layers = self.model.layers
        self.progress(f"layer {span.start + 1} of {len(layers)}")
        outputs = tuple(n for i in span for n in layers[i].writes if self.model.seen(n))
        if not outputs:
            return span.stop
        piece = self._piece(span, outputs)
        try:
            want, got = self._reference(piece), self._compiled(piece)
        except TccError as error:
            middle = self._middle(span)
            if middle is not None:
                return self._check(range(span.start, middle))
            return self._alone_failed(piece, error)
        self._values.update(want)
        return self._judge(span, got, want)

    def _middle(self, span: range) -> int | None:
        """Returns the place nearest to the span's middle where the graph can be split, or None."""
        half = span.start + len(span) // 2
        places = (p for p in span[1:] if self._can_end(span.start, p))
        return min(places, key=lambda p: abs(p - half), default=None)

    def _judge(self, span: range, got: NamedArrays, want: NamedArrays) -> int:
        """Adds the findings of a span of layers, and returns the next layer to check.

        If a node is at fault, the next layer is the layer after it, so that its error spreads no
        further. Otherwise it is the layer after the span.
        """
        wrong_values: set[str] = set()
        for number in span:
            layer = self.model.layers[number]
            inputs_right = wrong_values.isdisjoint(layer.reads)
            rows = []
            for name in layer.writes:
                if name not in want:
                    difference = Difference(
                        name, 0.0, True, "not an array of a type that NumPy has"
                    )
                    rows.append(_finding(number, layer, difference, 0.0, inputs_right, "unseen"))
                    continue
                allowed = max(self.allowed, _UNIT.get(want[name].dtype.str[1:], 0) * 8)
                difference = compare(name, got[name], want[name], allowed)
                verdict = "ok" if difference.ok else "wrong" if inputs_right else "follows"
                rows.append(_finding(number, layer, difference, allowed, inputs_right, verdict))
            bad_rows = [row for row in rows if row.verdict in ("wrong", "follows")]
            wrong_values.update(layer.writes if bad_rows or not inputs_right else ())
            is_fault = inputs_right and bool(bad_rows)
            self._report.findings += self._alone(number, rows) if is_fault else rows
            if is_fault and (self._can_end(span.start, number + 1) or number + 1 == span.stop):
                return number + 1
        return span.stop

    def _alone(self, number: int, rows: Sequence[Finding]) -> list[Finding]:
        """Compiles a wrong node by itself, runs it on the reference's inputs, and returns findings.

        `rows` are the findings of the node in its batch.
        """
        layer = self.model.layers[number]
        span = range(number, number + 1)
        outputs = tuple(row.output for row in rows if row.verdict != "unseen")
        if not all(name in self._values for name in layer.reads):
            # An input is no array, such as a sequence, so the node cannot run by itself.
            return list(rows)
        piece = Piece(span, outputs, frozenset())
        try:
            want = self._reference(piece)
            try:
                got = self._compiled(piece)
            except UserError:
                # The compile may need the values of some inputs, such as sizes. So they become
                # constants.
                piece = self._piece(span, outputs)
                got = self._compiled(piece)
        except TccError as error:
            return [replace(row, verdict="failed", why=str(error)) for row in rows]
        findings, limits = [], []
        for row in rows:
            if row.verdict == "unseen":
                findings.append(row)
                continue
            allowed = self._allowed_alone(layer, want[row.output])
            difference = compare(row.output, got[row.output], want[row.output], allowed)
            verdict = "wrong" if not difference.ok else "ok" if row.verdict == "ok" else "rounding"
            limits.append(allowed)
            findings.append(_finding(number, layer, difference, allowed, True, verdict))
        if any(row.verdict == "wrong" for row in findings):
            self._blame(piece, max(limits))
        return findings

    def _alone_failed(self, piece: Piece, error: TccError) -> int:
        """Records that one layer, or a span that cannot be split, does not compile or run.

        Returns the next layer to check.
        """
        verdict = "refused" if isinstance(error, UserError) else "failed"
        if isinstance(error, _NoReferenceError):
            verdict = "unseen"
        span = piece.span
        layer = self.model.layers[span.start]
        difference = Difference(piece.outputs[0], float("nan"), False, str(error))
        finding = _finding(span.start, layer, difference, self.allowed, True, verdict)
        self._report.findings.append(finding)
        if verdict == "unseen":
            raise ToolError(
                "no reference runs this node, so none that follows can be checked",
                where=f"node {layer.name} ({layer.op})",
                why=error,
            ) from error
        self._blame(piece, self.allowed)
        self._values.update(self._reference(self._piece(span, self._leaving(span))))
        return span.stop

    def _allowed_alone(self, layer: Layer, want: Array) -> float:
        if want.dtype.kind != "f":
            return 0.0
        units = _UNITS[layer.tolerance or Tolerance.ACCUMULATE]
        rounding = _UNIT[want.dtype.str[1:]]
        bound = min(units, 16) * rounding if want.dtype == np.float16 else units * rounding
        return (
            bound if self.options.precision == "f32" and not self.options.weights else self.allowed
        )

    # ---- layers that fail only together -----------------------------------------------------

    def _joint_layers(self) -> tuple[str, ...]:
        """Returns the layers that disagree only when compiled together, and sets the fault.

        Returns an empty tuple where the whole model agrees.
        """
        count = len(self.model.layers)
        if not self._differs(0, count):
            return ()
        cuts = [p for p in range(1, count) if self._can_end(0, p)]
        ends = [*cuts, count]
        end = _first(ends, lambda place: self._differs(0, place))
        begins = [*(p for p in reversed(cuts) if p < end), 0]
        begin = _first(begins, lambda place: self._differs(place, end))
        span = range(begin, end)
        self._begin_at(begin)
        self._blame(self._piece(span, self._shown(span)), self.allowed)
        return tuple(self.model.layers[number].name for number in span)

    def _differs(self, begin: int, end: int) -> bool:
        """True where the layers, compiled together as in the model, give wrong results."""
        self.progress(f"layers {begin + 1} to {end} joined")
        self._begin_at(begin)
        span = range(begin, end)
        piece = self._piece(span, self._shown(span))
        if not piece.outputs:
            return False
        want = self._reference(piece)
        try:
            got = self._compiled(piece)
        except TccError:
            return True
        return not all(compare(n, got[n], want[n], self.allowed).ok for n in piece.outputs)

    def _begin_at(self, begin: int) -> None:
        """Loads the reference's values that the layers from `begin` on read."""
        self._values = dict(self.inputs)
        if begin:
            span = range(begin)
            self._values.update(self._reference(Piece(span, self._leaving(span), frozenset())))
            self._forget(begin)

    # ---- runs of a piece --------------------------------------------------------------------

    def _piece(self, span: range, outputs: tuple[str, ...]) -> Piece:
        """Returns the layers of `span` as a piece with the given outputs.

        An input of the span becomes a constant if it depends on no input of the model. So does a
        short vector of integers, which may hold sizes. The compile of the complete model computes
        both before the run.
        """
        fixed = frozenset(
            name
            for name in self._reads(span) - self.inputs.keys()
            if name in self.model.constant or _like_sizes(self._values[name])
        )
        return Piece(span, outputs, fixed)

    def _reads(self, span: range) -> set[str]:
        return {n for i in span for n in self.model.layers[i].reads if n in self._values}

    def _blame(self, piece: Piece, allowed: float) -> None:
        """Sets the report's fault, unless an earlier fault is set."""
        reads = self._reads(piece.span)
        arrays = {name: value for name, value in self._values.items() if name in reads}
        self._report.fault = self._report.fault or Fault(piece, arrays, allowed)

    def _written(self, piece: Piece) -> tuple[Path, dict[str, Array]]:
        """Returns the piece's file and its input arrays; writes the file once for both runtimes."""
        path = self.folder / "layers.onnx"
        if self._last != piece:
            self._names = self.model.write(
                path, piece.span, self._values, piece.outputs, piece.fixed
            )
            self._last = piece
        return path, {name: self._values[name] for name in self._names}

    def _reference(self, piece: Piece) -> NamedArrays:
        """Returns the outputs of ONNX Runtime, or of the evaluator where ONNX Runtime cannot run
        the piece."""
        path, feeds = self._written(piece)
        runs: dict[str, Callable[[], NamedArrays]] = {}
        reasons = []
        with drawn_model(path) as (drawn, evaluated):
            if find_spec("onnxruntime") is not None and not evaluated:
                plain = partial(_outputs_of, "ort-plain", drawn, feeds, self.threads)
                runs["ONNX Runtime without optimisations"] = plain
            runs["the reference evaluator"] = partial(evaluate_model, drawn, feeds)
            for name, evaluate in runs.items():
                try:
                    outputs = evaluate()
                except TccError as error:
                    reasons.append(f"{name}: {error}")
                    if len(piece.span) > 1:
                        break  # the caller checks fewer layers, to find which one cannot run
                else:
                    self._report.references[name] = None
                    return outputs
        raise _NoReferenceError("no reference runs this", why="; ".join(reasons))

    def _compiled(self, piece: Piece) -> NamedArrays:
        path, feeds = self._written(piece)
        self._report.compiles += 1
        compiled = compile_model(path, self.options, self.folder / "layers.so")
        return _outputs_of("tcc", compiled.path, feeds, self.threads)


class _NoReferenceError(ToolError):
    """Says that neither ONNX Runtime nor the evaluator runs a piece."""


# The rounding unit of each type, by NumPy's letters for it.
_UNIT = {"f2": 2.0**-11, "f4": 2.0**-24, "f8": 2.0**-53}


def _outputs_of(kind: str, model: Path, feeds: NamedArrays, threads: int) -> NamedArrays:
    with Peer(kind, model, feeds, threads) as peer:
        return peer.outputs()


def _like_sizes(value: Array) -> bool:
    return value.dtype.kind in "iu" and value.ndim <= 1 and value.size <= 64


def _first(places: Sequence[int], bad: Callable[[int], bool]) -> int:
    """Returns the first bad place, found by bisection; the last place must be bad."""
    return places[bisect_left(places, True, hi=len(places) - 1, key=bad)]


def _finding(
    number: int, layer: Layer, delta: Difference, allowed: float, right: bool, verdict: str
) -> Finding:
    return Finding(
        number, layer.name, layer.op, delta.output, delta.error, allowed, right, verdict, delta.why
    )
