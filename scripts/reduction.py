"""Shrinks a failing ONNX model, given a check of one model, for `scripts/reduce`.

A reference first computes and records every value of the model. Then any set of its nodes is a
model: values that it reads from other nodes become inputs with the recorded arrays, or constants if
they hold sizes. Delta debugging finds a small set that still fails. After that, optional inputs,
attributes and outputs are removed and sizes are cut, as long as the model still fails.
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
# An integer vector of at most this many elements is taken for a list of sizes or axes, and becomes
# a constant of the reduced model.
_LIKE_SIZES = 64


@dataclass(frozen=True)
class ReductionCandidate:
    """A model that may still fail, and the arrays of its inputs."""

    proto: onnx.ModelProto
    arrays: Mapping[str, Array]

    def save(self, folder: Path) -> list[str]:
        """Writes `model.onnx` and a file for each input into `folder`.

        Returns the arguments `--input NAME=@FILE` of tcc's commands, which inputs.json has too.
        """
        onnx.save(self.proto, folder / MODEL)
        words = []
        for number, name in enumerate(value.name for value in self.proto.graph.input):
            np.save(folder / f"input{number}.npy", _storable(self.arrays[name]))
            words += ["--input", f"{name}=@input{number}.npy"]
        (folder / "inputs.json").write_text(json.dumps(words))
        return words

    @property
    def digest(self) -> str:
        """Returns a hash of the model and of the arrays."""
        hasher = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for name in sorted(self.arrays):
            hasher.update(name.encode() + _storable(self.arrays[name]).tobytes())
        return hasher.hexdigest()


class Trials:
    """Tries candidates and remembers the answers.

    `fails(folder)` returns True if the candidate in `folder` fails. Answers are kept in the file
    `memory`, so that a reduction that was stopped continues where it was. `question` describes the
    check: answers to another question are not used.
    """

    def __init__(
        self,
        fails: Callable[[Path], bool],
        memory: Path,
        say: Callable[[str], None],
        question: str = "",
    ) -> None:
        self._fails, self._memory, self._say, self._question = fails, memory, say, question
        self._verdicts: dict[str, bool] = {}
        if memory.is_file():
            for line in memory.read_text().splitlines():
                digest, _, verdict = line.partition(" ")
                self._verdicts[digest] = verdict == "fails"
        self.count = 0

    def fail(self, candidate: ReductionCandidate) -> bool:
        """Returns True if the candidate fails, from memory if it was tried before."""
        digest = hashlib.sha256(f"{self._question} {candidate.digest}".encode()).hexdigest()
        if digest not in self._verdicts:
            self.count += 1
            with TemporaryDirectory(prefix="tcc-reduce-") as folder:
                candidate.save(Path(folder))
                self._verdicts[digest] = self._fails(Path(folder))
            with self._memory.open("a") as file:
                file.write(f"{digest} {'fails' if self._verdicts[digest] else 'passes'}\n")
            verdict = "still fails" if self._verdicts[digest] else "passes"
            self._say(f"trial {self.count}: {len(candidate.proto.graph.node)} nodes, {verdict}")
        return self._verdicts[digest]


def reduce_model(model: Path, inputs: Mapping[str, Array], trials: Trials) -> ReductionCandidate:
    """Reduces `model`, which fails with `inputs`; returns the smallest candidate that still fails.

    Raises UserError if the model, rebuilt from all its nodes, does not fail.
    """
    source = PieceModel(model, {name: array.shape for name, array in inputs.items()})
    values = {**recorded(model, source, inputs), **inputs}
    pieces = Pieces(source, values, frozenset(inputs))
    all_nodes = list(range(len(source.layers)))
    full_model = pieces.candidate(all_nodes, source.outputs)
    if full_model is None or not trials.fail(full_model):
        raise UserError(
            "the model does not fail", where=str(model), hint="try the check on it by hand"
        )

    def fails(numbers: Sequence[int]) -> bool:
        candidate = pieces.candidate(numbers)
        return candidate is not None and trials.fail(candidate)

    nodes = all_nodes if not fails(all_nodes) else minimal(all_nodes, fails)
    smallest = pieces.candidate(nodes) if nodes != all_nodes else full_model
    return simplified(smallest or full_model, trials)


class Pieces:
    """Builds models from subsets of a model's nodes.

    `values` has recorded arrays by name. Values that a subset reads but does not compute become
    inputs or constants with these arrays.
    """

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
    ) -> ReductionCandidate | None:
        """Returns the model of the nodes with the indices `numbers`.

        Without `outputs`, its outputs are the values that none of its nodes reads. Returns None if
        it has no outputs, or if it needs a value that was not recorded.
        """
        layers = [self._source.layers[number] for number in numbers]
        read_names = {name for layer in layers for name in layer.reads}
        written_names = {name for layer in layers for name in layer.writes}
        if outputs is None:
            ends = (name for layer in layers for name in layer.writes if name not in read_names)
            outputs = [name for name in ends if name in self._values]
        if not outputs or not read_names - written_names <= self._values.keys():
            return None
        with TemporaryDirectory(prefix="tcc-reduce-") as folder:
            path = Path(folder, MODEL)
            names = self._source.write(path, numbers, self._values, outputs, self._fixed)
            proto = onnx.load(path)
        return ReductionCandidate(proto, {name: self._values[name] for name in names})


def recorded(model: Path, source: PieceModel, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Returns the arrays of all intermediate values of a run, by name.

    ONNX Runtime runs the model, or else the reference evaluator. If both fail, values whose sizes
    are known without a run get arrays of ones, and all other values are missing.
    """
    outputs = [name for layer in source.layers for name in layer.writes if source.seen(name)]
    with TemporaryDirectory(prefix="tcc-reduce-") as folder:
        path = Path(folder, MODEL)
        source.write(path, range(len(source.layers)), inputs, outputs)
        try:
            with Peer("ort-plain", path, inputs, 1) as peer:
                return peer.outputs()
        except TccError:
            pass  # the reference evaluator is tried next
        try:
            return evaluate_model(path, inputs)
        except TccError:
            examples = {name: source.example(name) for name in outputs}
    return {name: array for name, array in examples.items() if array is not None}


def minimal(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Returns a minimal part of `items` that fails; `items` itself must fail.

    Minimal means that it no longer fails without any single one of its items. The algorithm is
    Zeller's ddmin: it tries to drop halves, then quarters, ..., then single items.
    """
    remaining, count = list(items), 2
    while len(remaining) > 1:
        size = -(-len(remaining) // count)
        parts = [remaining[at : at + size] for at in range(0, len(remaining), size)]
        part = next((part for part in parts if len(parts) > 1 and fails(part)), None)
        if part is not None:
            remaining, count = part, 2
            continue
        remainders = ([x for x in remaining if x not in set(part)] for part in parts)
        remainder = next(
            (remainder for remainder in remainders if remainder and fails(remainder)), None
        )
        if remainder is not None:
            remaining, count = remainder, max(count - 1, 2)
        elif size == 1:
            break
        else:
            count = min(len(remaining), 2 * count)
    return remaining


# ---- simplifying the nodes -----------------------------------------------------------------------


def simplified(candidate: ReductionCandidate, trials: Trials) -> ReductionCandidate:
    """Returns a candidate that still fails, with fewer outputs, operands and attributes, and with
    smaller sizes."""
    for step in (_fewer_outputs, _fewer_operands, _fewer_attributes, _smaller):
        shrunk = True
        while shrunk:
            shrunk = False
            for simpler in step(candidate):
                if _valid(simpler) and trials.fail(simpler):
                    candidate, shrunk = simpler, True
                    break
    return candidate


def _fewer_outputs(candidate: ReductionCandidate) -> Iterator[ReductionCandidate]:
    outputs = candidate.proto.graph.output
    for number in range(len(outputs) if len(outputs) > 1 else 0):
        proto = _copied(candidate.proto)
        del proto.graph.output[number]
        yield ReductionCandidate(proto, candidate.arrays)


def _fewer_operands(candidate: ReductionCandidate) -> Iterator[ReductionCandidate]:
    """Yields, for each node, a candidate in which it lacks its last operand.

    A candidate is invalid (see `_valid`) if that operand is not optional.
    """
    for number, node in enumerate(candidate.proto.graph.node):
        if len(node.input) > 1:
            proto = _copied(candidate.proto)
            del proto.graph.node[number].input[-1]
            yield _without_unread(ReductionCandidate(proto, candidate.arrays))


def _fewer_attributes(candidate: ReductionCandidate) -> Iterator[ReductionCandidate]:
    for number, node in enumerate(candidate.proto.graph.node):
        for place in range(len(node.attribute)):
            proto = _copied(candidate.proto)
            del proto.graph.node[number].attribute[place]
            yield ReductionCandidate(proto, candidate.arrays)


def _smaller(candidate: ReductionCandidate) -> Iterator[ReductionCandidate]:
    """Yields candidates with smaller arrays.

    First, all axes of equal size are cut to a smaller size together, in all inputs and weights;
    lists of sizes change accordingly. Then single axes of single arrays are cut.
    """
    arrays = dict(candidate.arrays)
    for tensor in candidate.proto.graph.initializer:
        arrays[tensor.name] = onnx.numpy_helper.to_array(tensor)
    all_sizes = [size for array in arrays.values() for size in array.shape]
    for size in sorted({size for size in all_sizes if size > 1}, reverse=True):
        for less in _less(size):
            yield _cut(candidate, {n: _sliced(a, size, less) for n, a in arrays.items()})
    for name, array in arrays.items():
        for axis, size in enumerate(array.shape):
            for less in _less(size) if size > 1 and all_sizes.count(size) > 1 else ():
                shortened = np.ascontiguousarray(np.take(array, range(less), axis))
                yield _cut(candidate, {**arrays, name: shortened})


def _less(size: int) -> list[int]:
    return sorted({1, 2, size // 2} - {size})


def _cut(candidate: ReductionCandidate, arrays: Mapping[str, Array]) -> ReductionCandidate:
    proto = _copied(candidate.proto)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name))
    for value in proto.graph.input:
        element = value.type.tensor_type.elem_type
        shape = arrays[value.name].shape
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, element, shape))
    return ReductionCandidate(proto, {name: arrays[name] for name in candidate.arrays})


def _sliced(array: Array, size: int, less: int) -> Array:
    shortened = array[tuple(slice(less) if n == size else slice(None) for n in array.shape)]
    if _like_sizes(array):
        shortened = np.where(shortened == size, np.asarray(less, shortened.dtype), shortened)
    return np.ascontiguousarray(shortened)


def _without_unread(candidate: ReductionCandidate) -> ReductionCandidate:
    """Removes inputs and weights that nothing reads from the candidate's model, and returns it."""
    graph = candidate.proto.graph
    read_names = {name for node in graph.node for name in node.input}
    read_names.update(value.name for value in graph.output)
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read_names]:
        graph.initializer.remove(tensor)
    for value in [value for value in graph.input if value.name not in read_names]:
        graph.input.remove(value)
    names = {value.name for value in graph.input}
    return ReductionCandidate(
        candidate.proto, {name: array for name, array in candidate.arrays.items() if name in names}
    )


def _valid(candidate: ReductionCandidate) -> bool:
    """Returns True if ONNX's checker and its shape inference accept the model."""
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
    """Returns an array of Python strings as one of NumPy's type `str`, which needs no pickle.

    Returns any other array unchanged.
    """
    return array.astype(str) if array.dtype == object else array


def _like_sizes(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= _LIKE_SIZES
