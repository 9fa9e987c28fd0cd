"""Shrinks a failing ONNX model: what `scripts/reduce` does, given a check of one model.

Every value of the model is recorded once, by a reference.  Then any set of its nodes is a model:
what it reads from other nodes are inputs with the recorded arrays, or constants where they hold
sizes.  Delta debugging finds a small set that still fails; then optional inputs, attributes and
outputs are left out and sizes cut while it does.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from tcc.cli.peers.peer import Peer
from tcc.driver import evaluate_model
from tcc.errors import TccError, UserError
from tcc.frontends.onnx.pieces import PieceModel

Array = np.ndarray
MODEL = "model.onnx"
_LIKE_SIZES = 64  # elements of an integer vector that becomes a constant


@dataclass(frozen=True)
class Candidate:
    """A model and the arrays of its inputs."""

    proto: onnx.ModelProto
    arrays: Mapping[str, Array]

    def save(self, folder: Path) -> list[str]:
        """Writes `model.onnx` and a file for each input; the arguments that name these."""
        onnx.save(self.proto, folder / MODEL)
        words = []
        for number, name in enumerate(value.name for value in self.proto.graph.input):
            np.save(folder / f"input{number}.npy", _storable(self.arrays[name]))
            words += ["--input", f"{name}=@input{number}.npy"]
        (folder / "inputs.json").write_text(json.dumps(words))
        return words

    @property
    def digest(self) -> str:
        """Of all that a check may depend on."""
        held = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for name in sorted(self.arrays):
            held.update(name.encode() + _storable(self.arrays[name]).tobytes())
        return held.hexdigest()


class Trials:
    """Asks `fails(folder)` about candidates, each written to a folder, and remembers the answers in
    the file `memory`, so that a reduction that was stopped goes on where it was.  Answers to
    another `question` do not count."""

    def __init__(
        self,
        fails: Callable[[Path], bool],
        memory: Path,
        say: Callable[[str], None],
        question: str = "",
    ) -> None:
        self._fails, self._memory, self._say, self._question = fails, memory, say, question
        self._known: dict[str, bool] = {}
        if memory.is_file():
            for line in memory.read_text().splitlines():
                digest, _, verdict = line.partition(" ")
                self._known[digest] = verdict == "fails"
        self.asked = 0

    def fail(self, candidate: Candidate) -> bool:
        """Whether the candidate still fails."""
        digest = hashlib.sha256(f"{self._question} {candidate.digest}".encode()).hexdigest()
        if digest not in self._known:
            self.asked += 1
            with TemporaryDirectory(prefix="tcc-reduce-") as folder:
                candidate.save(Path(folder))
                self._known[digest] = self._fails(Path(folder))
            with self._memory.open("a") as file:
                file.write(f"{digest} {'fails' if self._known[digest] else 'passes'}\n")
            verdict = "still fails" if self._known[digest] else "passes"
            self._say(f"trial {self.asked}: {len(candidate.proto.graph.node)} nodes, {verdict}")
        return self._known[digest]


def reduce_model(model: Path, inputs: Mapping[str, Array], trials: Trials) -> Candidate:
    """The smallest model found that fails as `model` does with `inputs`.

    Raises UserError where the model itself does not fail, once its nodes are written anew.
    """
    source = PieceModel(model, {name: array.shape for name, array in inputs.items()})
    values = {**recorded(model, source, inputs), **inputs}
    pieces = Pieces(source, values, frozenset(inputs))
    everything = list(range(len(source.layers)))
    whole = pieces.candidate(everything, source.outputs)
    if whole is None or not trials.fail(whole):
        raise UserError(
            "the model does not fail", where=str(model), hint="try the check on it by hand"
        )

    def fails(numbers: Sequence[int]) -> bool:
        found = pieces.candidate(numbers)
        return found is not None and trials.fail(found)

    nodes = everything if not fails(everything) else minimal(everything, fails)
    smallest = pieces.candidate(nodes) if nodes != everything else whole
    return simplified(smallest or whole, trials)


class Pieces:
    """Sets of a model's nodes as models."""

    def __init__(
        self, source: PieceModel, values: Mapping[str, Array], inputs: frozenset[str]
    ) -> None:
        self._source, self._values = source, values
        self._fixed = frozenset(
            name
            for name, array in values.items()
            if name not in inputs and (name in source.constant or _like_sizes(array))
        )

    def candidate(
        self, numbers: Sequence[int], outputs: Sequence[str] | None = None
    ) -> Candidate | None:
        """The model of those nodes; its outputs are what none of them reads.  None where one would
        need a value that was not recorded."""
        layers = [self._source.layers[number] for number in numbers]
        read = {name for layer in layers for name in layer.reads}
        made = {name for layer in layers for name in layer.writes}
        if outputs is None:
            ends = (name for layer in layers for name in layer.writes if name not in read)
            outputs = [name for name in ends if name in self._values]
        if not outputs or not read - made <= self._values.keys():
            return None
        with TemporaryDirectory(prefix="tcc-reduce-") as folder:
            path = Path(folder, MODEL)
            names = self._source.write(path, numbers, self._values, outputs, self._fixed)
            proto = onnx.load(path)
        return Candidate(proto, {name: self._values[name] for name in names})


def recorded(model: Path, source: PieceModel, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Every value that has an array, by ONNX Runtime, else by the reference evaluator.

    Where neither runs the model, these are ones, of the sizes that are known without running it."""
    outputs = [name for layer in source.layers for name in layer.writes if source.seen(name)]
    with TemporaryDirectory(prefix="tcc-reduce-") as folder:
        path = Path(folder, MODEL)
        source.write(path, range(len(source.layers)), inputs, outputs)
        try:
            with Peer("ort-plain", path, inputs, 1) as peer:
                return peer.outputs()
        except TccError:
            pass  # the evaluator may still run it
        try:
            return evaluate_model(path, inputs)
        except TccError:
            examples = {name: source.example(name) for name in outputs}
    return {name: array for name, array in examples.items() if array is not None}


def minimal(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A part of `items` that fails and of which no half, quarter, ... and no single item can be
    left out (Zeller's ddmin); `items` itself must fail."""
    kept, count = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // count)
        parts = [kept[at : at + size] for at in range(0, len(kept), size)]
        part = next((part for part in parts if len(parts) > 1 and fails(part)), None)
        if part is not None:
            kept, count = part, 2
            continue
        rests = ([x for x in kept if x not in set(part)] for part in parts)
        rest = next((rest for rest in rests if rest and fails(rest)), None)
        if rest is not None:
            kept, count = rest, max(count - 1, 2)
        elif size == 1:
            break
        else:
            count = min(len(kept), 2 * count)
    return kept


# ---- within the nodes ---------------------------------------------------------------------------


def simplified(candidate: Candidate, trials: Trials) -> Candidate:
    """The candidate without what it fails without: outputs, optional inputs, attributes, sizes."""
    for step in (_fewer_outputs, _fewer_operands, _fewer_attributes, _smaller):
        shrunk = True
        while shrunk:
            shrunk = False
            for simpler in step(candidate):
                if _valid(simpler) and trials.fail(simpler):
                    candidate, shrunk = simpler, True
                    break
    return candidate


def _fewer_outputs(candidate: Candidate) -> Iterator[Candidate]:
    outputs = candidate.proto.graph.output
    for number in range(len(outputs) if len(outputs) > 1 else 0):
        proto = _copied(candidate.proto)
        del proto.graph.output[number]
        yield Candidate(proto, candidate.arrays)


def _fewer_operands(candidate: Candidate) -> Iterator[Candidate]:
    """Without the last input of a node, where it is an optional one: checkers say."""
    for number, node in enumerate(candidate.proto.graph.node):
        if len(node.input) > 1:
            proto = _copied(candidate.proto)
            del proto.graph.node[number].input[-1]
            yield _without_unread(Candidate(proto, candidate.arrays))


def _fewer_attributes(candidate: Candidate) -> Iterator[Candidate]:
    for number, node in enumerate(candidate.proto.graph.node):
        for place in range(len(node.attribute)):
            proto = _copied(candidate.proto)
            del proto.graph.node[number].attribute[place]
            yield Candidate(proto, candidate.arrays)


def _smaller(candidate: Candidate) -> Iterator[Candidate]:
    """With all dimensions of one size cut to another, in inputs, weights and lists of sizes; then
    with one axis of one array cut alone."""
    arrays = dict(candidate.arrays)
    for held in candidate.proto.graph.initializer:
        arrays[held.name] = onnx.numpy_helper.to_array(held)
    every = [size for array in arrays.values() for size in array.shape]
    for size in sorted({size for size in every if size > 1}, reverse=True):
        for less in _less(size):
            yield _cut(candidate, {n: _sliced(a, size, less) for n, a in arrays.items()})
    for name, array in arrays.items():
        for axis, size in enumerate(array.shape):
            for less in _less(size) if size > 1 and every.count(size) > 1 else ():
                alone = np.ascontiguousarray(np.take(array, range(less), axis))
                yield _cut(candidate, {**arrays, name: alone})


def _less(size: int) -> list[int]:
    return sorted({1, 2, size // 2} - {size})


def _cut(candidate: Candidate, cut: Mapping[str, Array]) -> Candidate:
    proto = _copied(candidate.proto)
    for held in proto.graph.initializer:
        held.CopyFrom(onnx.numpy_helper.from_array(cut[held.name], held.name))
    for value in proto.graph.input:
        element = value.type.tensor_type.elem_type
        shape = cut[value.name].shape
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, element, shape))
    return Candidate(proto, {name: cut[name] for name in candidate.arrays})


def _sliced(array: Array, size: int, less: int) -> Array:
    cut = array[tuple(slice(less) if n == size else slice(None) for n in array.shape)]
    if _like_sizes(array):
        cut = np.where(cut == size, np.asarray(less, cut.dtype), cut)
    return np.ascontiguousarray(cut)


def _without_unread(candidate: Candidate) -> Candidate:
    """Drops inputs and weights that nothing reads any more."""
    graph = candidate.proto.graph
    read = {name for node in graph.node for name in node.input}
    read.update(value.name for value in graph.output)
    for held in [held for held in graph.initializer if held.name not in read]:
        graph.initializer.remove(held)
    for value in [value for value in graph.input if value.name not in read]:
        graph.input.remove(value)
    names = {value.name for value in graph.input}
    return Candidate(
        candidate.proto, {name: array for name, array in candidate.arrays.items() if name in names}
    )


def _valid(candidate: Candidate) -> bool:
    """Whether ONNX itself takes the model: its checker and the inference of its sizes."""
    try:
        onnx.checker.check_model(candidate.proto)
        onnx.shape_inference.infer_shapes(candidate.proto, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return True


def _copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _storable(array: Array) -> Array:
    """Strings as NumPy's own, whose files need no pickle."""
    return array.astype(str) if array.dtype == object else array


def _like_sizes(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= _LIKE_SIZES
