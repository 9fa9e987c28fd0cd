"""A model against a reference, layer by layer.

The graph's nodes are taken in batches, each as large as the memory allows and compiled once with
all its values as outputs.  Every batch begins with the reference's values, so errors do not travel
from one to the next.  A value that is off although what its node reads is right is looked at again:
the node alone is compiled, and where that agrees, its inputs' rounding was the cause.  Where all
nodes agree and the model does not, the fault lies in how nodes are joined: the shortest run of them
that disagrees is searched for, by halving.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tcc.cli.compare import Difference, compare
from tcc.cli.drawn import drawn_model
from tcc.cli.layer_results import Fault, Finding, Piece, Report
from tcc.cli.peers.peer import Peer
from tcc.driver import compile_model, evaluate_model
from tcc.errors import TccError, ToolError, UserError
from tcc.frontends.onnx.pieces import Layer, PieceModel
from tcc.ir.op import Array, NamedArrays, Tolerance
from tcc.options import Options

_MOST = 500  # layers of one batch: what one compile may become
_COPIES = 4  # of a value at once: in both runtimes, as they answer
# Errors of one node alone, in units of its type's rounding, over the largest value.
_UNITS: Mapping[Tolerance, float] = {
    Tolerance.EXACT: 0,
    Tolerance.ELEMENTWISE: 16,
    Tolerance.ACTIVATION: 16,
    Tolerance.ACCUMULATE: 800,
}


@dataclass(slots=True)
class LayerCheck:
    """Checks one model; `folder` is for its own files.

    `memory` bounds the bytes of values that are held at once, `allowed` an error over the largest
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
        """Finds which layer reads each value last (outputs of the model: none is the last), and
        what must not be cut: the values that no array holds, from where to where."""
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
        """Raises UserError where not even one layer fits the memory."""
        self._values.update(self.inputs)
        begin, count = 0, len(self.model.layers)
        while begin < count and (self._report.fault is None or self.keep_going):
            end = self._batch_end(begin)
            begin = self._check(range(begin, end))
            self._forget(begin)
        if begin == count and self._report.fault is None:
            self._report.joined = self._joined()
        return self._report

    # ---- batches ----------------------------------------------------------------------------

    def _batch_end(self, begin: int) -> int:
        """Where the batch from `begin` on ends: within the memory, where all values can be cut."""
        held = sum(value.nbytes for value in self._values.values())
        end, last = begin, begin
        while end < len(self.model.layers) and end - begin < _MOST:
            held += _COPIES * sum(map(self.model.bytes_of, self.model.layers[end].writes))
            if held > self.memory and last > begin:
                break
            end += 1
            if self._can_end(begin, end):
                last = end
        if last == begin:  # nothing fits, or no value can be cut: as few as there can be
            last = begin + 1
            while last < len(self.model.layers) and not self._can_end(begin, last):
                last += 1
        return last

    def _can_end(self, begin: int, end: int) -> bool:
        return not any(begin <= made < end <= read for made, read in self._unseen)

    def _leaving(self, span: range) -> tuple[str, ...]:
        """The values of the span that are read behind it or are outputs of the model."""
        made = dict.fromkeys(n for i in span for n in self.model.layers[i].writes)
        return tuple(name for name in made if self._last_read.get(name, -1) >= span.stop)

    def _shown(self, span: range) -> tuple[str, ...]:
        """Those of which there are arrays."""
        return tuple(filter(self.model.seen, self._leaving(span)))

    def _forget(self, begin: int) -> None:
        """Drops what no layer from `begin` on reads."""
        for name in [n for n in self._values if self._last_read.get(n, -1) < begin]:
            del self._values[name]

    # ---- one batch --------------------------------------------------------------------------

    def _check(self, span: range) -> int:
        """Checks the layers of `span`, or the first of them, and returns where to go on."""
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
        """Where the span can be halved."""
        half = span.start + len(span) // 2
        places = (p for p in span[1:] if self._can_end(span.start, p))
        return min(places, key=lambda p: abs(p - half), default=None)

    def _judge(self, span: range, got: NamedArrays, want: NamedArrays) -> int:
        """Adds the findings of a span and returns where to go on: behind a node whose fault must
        not be carried further, else behind the span."""
        wrong: set[str] = set()
        for number in span:
            layer = self.model.layers[number]
            inputs_right = wrong.isdisjoint(layer.reads)
            rows = []
            for name in layer.writes:
                if name not in want:
                    found = Difference(name, 0.0, True, "not an array of a type that NumPy has")
                    rows.append(_finding(number, layer, found, 0.0, inputs_right, "unseen"))
                    continue
                allowed = max(self.allowed, _UNIT.get(want[name].dtype.str[1:], 0) * 8)
                found = compare(name, got[name], want[name], allowed)
                verdict = "ok" if found.ok else "wrong" if inputs_right else "follows"
                rows.append(_finding(number, layer, found, allowed, inputs_right, verdict))
            off = [row for row in rows if row.verdict in ("wrong", "follows")]
            wrong.update(layer.writes if off or not inputs_right else ())
            alone = inputs_right and bool(off)
            self._report.findings += self._alone(number, rows) if alone else rows
            if alone and (self._can_end(span.start, number + 1) or number + 1 == span.stop):
                return number + 1
        return span.stop

    def _alone(self, number: int, rows: Sequence[Finding]) -> list[Finding]:
        """The findings of a node that was off, by what it does alone with the right values."""
        layer = self.model.layers[number]
        span = range(number, number + 1)
        outputs = tuple(row.output for row in rows if row.verdict != "unseen")
        if not all(name in self._values for name in layer.reads):
            return list(rows)  # it reads what cannot be handed over: the batch's word counts
        piece = Piece(span, outputs, frozenset())
        try:
            want = self._reference(piece)
            try:
                got = self._compiled(piece)
            except UserError:  # it needs some of what it reads when it is compiled
                piece = self._piece(span, outputs)
                got = self._compiled(piece)
        except TccError as error:
            return [replace(row, verdict="failed", why=str(error)) for row in rows]
        found, limits = [], []
        for row in rows:
            if row.verdict == "unseen":
                found.append(row)
                continue
            allowed = self._allowed_alone(layer, want[row.output])
            again = compare(row.output, got[row.output], want[row.output], allowed)
            verdict = "wrong" if not again.ok else "ok" if row.verdict == "ok" else "rounding"
            limits.append(allowed)
            found.append(_finding(number, layer, again, allowed, True, verdict))
        if any(row.verdict == "wrong" for row in found):
            self._blame(piece, max(limits))
        return found

    def _alone_failed(self, piece: Piece, error: TccError) -> int:
        """One layer, or layers that cannot be cut apart, that do not compile or run."""
        verdict = "refused" if isinstance(error, UserError) else "failed"
        if isinstance(error, _NoReferenceError):
            verdict = "unseen"
        span = piece.span
        layer = self.model.layers[span.start]
        nothing = Difference(piece.outputs[0], float("nan"), False, str(error))
        found = _finding(span.start, layer, nothing, self.allowed, True, verdict)
        self._report.findings.append(found)
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
        unit = _UNIT[want.dtype.str[1:]]
        own = min(units, 16) * unit if want.dtype == np.float16 else units * unit
        return own if self.options.precision == "f32" and not self.options.weights else self.allowed

    # ---- what is joined ---------------------------------------------------------------------

    def _joined(self) -> tuple[str, ...]:
        """The layers that disagree only together; sets the fault.  Empty: the whole agrees."""
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
        """Whether the layers compiled as they would be in the model give other results."""
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
        """Holds the reference's values of what the layers from `begin` on read."""
        self._values = dict(self.inputs)
        if begin:
            span = range(begin)
            self._values.update(self._reference(Piece(span, self._leaving(span), frozenset())))
            self._forget(begin)

    # ---- both sides -------------------------------------------------------------------------

    def _piece(self, span: range, outputs: tuple[str, ...]) -> Piece:
        """What the span reads becomes a constant of it where it is sizes, which the whole model
        knows when it is compiled, or depends on no input."""
        fixed = frozenset(
            name
            for name in self._reads(span) - self.inputs.keys()
            if name in self.model.constant or _like_sizes(self._values[name])
        )
        return Piece(span, outputs, fixed)

    def _reads(self, span: range) -> set[str]:
        return {n for i in span for n in self.model.layers[i].reads if n in self._values}

    def _blame(self, piece: Piece, allowed: float) -> None:
        """The first fault is the one that is shown."""
        reads = self._reads(piece.span)
        arrays = {name: value for name, value in self._values.items() if name in reads}
        self._report.fault = self._report.fault or Fault(piece, arrays, allowed)

    def _written(self, piece: Piece) -> tuple[Path, dict[str, Array]]:
        """The piece as a file, and the arrays of its inputs; both sides ask for it."""
        path = self.folder / "layers.onnx"
        if self._last != piece:
            self._names = self.model.write(
                path, piece.span, self._values, piece.outputs, piece.fixed
            )
            self._last = piece
        return path, {name: self._values[name] for name in self._names}

    def _reference(self, piece: Piece) -> NamedArrays:
        path, feeds = self._written(piece)
        with drawn_model(path) as (drawn, evaluated):
            return self._run_reference(piece, drawn, feeds, evaluated)

    def _run_reference(
        self, piece: Piece, path: Path, feeds: NamedArrays, evaluated: bool
    ) -> NamedArrays:
        """By ONNX Runtime, unless only the evaluator runs it."""
        runs: dict[str, Callable[[], NamedArrays]] = {}
        if find_spec("onnxruntime") is not None and not evaluated:
            plain = partial(_outputs_of, "ort-plain", path, feeds, self.threads)
            runs["ONNX Runtime without optimisations"] = plain
        runs["the reference evaluator"] = partial(evaluate_model, path, feeds)
        reasons = []
        for name, run in runs.items():
            try:
                found = run()
            except TccError as error:
                reasons.append(f"{name}: {error}")
                if len(piece.span) > 1:
                    break  # first find out which layer it is
            else:
                self._report.references[name] = None
                return found
        raise _NoReferenceError("no reference runs this", why="; ".join(reasons))

    def _compiled(self, piece: Piece) -> NamedArrays:
        path, feeds = self._written(piece)
        self._report.compiles += 1
        compiled = compile_model(path, self.options, self.folder / "layers.so")
        return _outputs_of("tcc", compiled.path, feeds, self.threads)


class _NoReferenceError(ToolError):
    """Neither ONNX Runtime nor the evaluator runs a piece."""


# The rounding unit of each type, by NumPy's letters for it.
_UNIT = {"f2": 2.0**-11, "f4": 2.0**-24, "f8": 2.0**-53}


def _outputs_of(kind: str, model: Path, feeds: NamedArrays, threads: int) -> NamedArrays:
    with Peer(kind, model, feeds, threads) as peer:
        return peer.outputs()


def _like_sizes(value: Array) -> bool:
    return value.dtype.kind in "iu" and value.ndim <= 1 and value.size <= 64


def _first(places: Sequence[int], bad: Callable[[int], bool]) -> int:
    """The first place that is bad, by halving; the last one is known to be."""
    return places[bisect_left(places, True, hi=len(places) - 1, key=bad)]


def _finding(
    number: int, layer: Layer, found: Difference, allowed: float, right: bool, verdict: str
) -> Finding:
    return Finding(
        number, layer.name, layer.op, found.output, found.error, allowed, right, verdict, found.why
    )
