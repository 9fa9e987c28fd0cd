"""Writes an ONNX model whose contractions read rounded weights and rounded operands.

    y = Conv(x, w)   ->   y = Conv(round(x), w')                    w' = round(w), a constant

The model's own nodes stay, so any ONNX runtime can run the result.  It is the reference for an
artifact that computes in fewer bits, and shares no kernel and no rewrite with it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx.helper import make_graph, make_node
from onnx.numpy_helper import from_array, to_array
from onnx.reference import ReferenceEvaluator
from tcc.frontends.onnx.pieces import read_names
from tcc.frontends.onnx.schema import bodies
from tcc.frontends.rounding import SUM_ERROR, Rounding, splitter
from tcc.ir.op import Array
from tcc.ops.algebra.levels import LEAST
from tcc.passes.quantize.level_bytes import BYTES, GROUP

# The axis along which each operand of a contraction is summed, by the operand's position. None
# stands for the longest axis except axis 0, as in the window of a convolution.
_AXES: Mapping[str, Mapping[int, int | None]] = {
    "MatMul": {0: -1, 1: -2},
    "Conv": {0: None, 1: None},
    "ConvTranspose": {0: None, 1: 0},
    **{recurrent: {0: -1, 1: -1, 2: -1} for recurrent in ("LSTM", "GRU", "RNN")},
}
# The position of the operand that is the weight of the recurrent state.
_STATES = dict.fromkeys(("LSTM", "GRU", "RNN"), 2)
_MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat")
_ELEMENTS = {"bf16": onnx.TensorProto.BFLOAT16, "f16": onnx.TensorProto.FLOAT16}
_BF16_OPSET = 13  # the first opset whose Cast takes bf16
_AXES_OPSET = 18  # the first opset whose ReduceMax reads its axes
# The nodes that round x to bytes, as y: the operator, the result, the operands.
_BYTE_NODES = """Shape shape x
Reshape groups x by
Abs sizes groups
ReduceMax largest sizes axes
Max top largest least
Div factor limit top
Mul scaled groups factor
Round rounded scaled
Div step top limit
Mul values rounded step
Reshape y values shape"""
# Operators that sum elements.
_SUMS = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceL1", "GlobalAveragePool")
_LARGE = 1 << 16  # bytes; larger weights go to the file beside the model


def write_rounded(model: Path, target: Path, rounding: Rounding) -> frozenset[str]:
    """Writes the ONNX file at `model` to `target`, rounded, with its weights in a file beside it.

    Returns the constants to be rounded that no contraction reads; all readers get their rounded
    values.
    """
    proto = onnx.load(model)
    opsets = {item.domain: item.version for item in proto.opset_import}
    rounder = _Rounder(opsets, rounding, _floats(proto) if rounding.noise else frozenset())
    rounder.contractions(proto.graph, {})
    rounder.casts(proto.graph)
    missed = frozenset(rounding.weights) - rounder.read - {""}
    _finish(proto.graph, missed, rounding)
    weights = f"{target.name}.weights"
    onnx.save(proto, target, save_as_external_data=True, location=weights, size_threshold=_LARGE)
    return missed


def _floats(proto: onnx.ModelProto) -> frozenset[str]:
    """Returns the tensors that are known to be f32."""
    floats: set[str] = set()
    graphs = [onnx.shape_inference.infer_shapes(proto).graph]
    while graphs:
        graph = graphs.pop()
        values = (*graph.value_info, *graph.output)
        floats |= {v.name for v in values if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
        graphs += [body for node in graph.node for body in bodies(node)]
    return frozenset(floats)


def _finish(graph: onnx.GraphProto, missed: Collection[str], rounding: Rounding) -> None:
    """Rounds the initialisers in `missed` in place, and drops initialisers that nothing reads."""
    names_read = {name for node in graph.node for name in read_names(node)}
    names_read |= {value.name for value in (*graph.input, *graph.output)}
    for body in (body for node in graph.node for body in bodies(node)):
        _finish(body, missed, rounding)
    for number in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[number]
        if tensor.name not in names_read:
            del graph.initializer[number]
        elif tensor.name in missed:
            array = rounding.weight([tensor.name], to_array(tensor), -1)
            tensor.CopyFrom(from_array(array, tensor.name))


_Maker = onnx.NodeProto | onnx.TensorProto


@dataclass(slots=True)
class _Rounder:
    """Rounds the operands of contractions in two sweeps over the nodes.

    The sweep `contractions` renames operands, and the sweep `casts` adds the nodes that compute the
    renamed operands. `floats` are the f32 tensors, and `read` the constants that contractions read.
    `kinds` maps a tensor to the type to which it is rounded; `bytes` are the tensors that some
    contractions read as bytes.
    """

    opsets: Mapping[str, int]
    rounding: Rounding
    floats: frozenset[str]
    read: set[str] = field(default_factory=set)
    kinds: dict[str, str] = field(default_factory=dict)
    bytes: set[str] = field(default_factory=set)

    def contractions(self, graph: onnx.GraphProto, outer: Mapping[str, _Maker]) -> None:
        """Renames operands in `graph`.

        `outer` maps the constants of the enclosing graphs to the nodes or tensors that define them.
        """
        inputs = {value.name for value in graph.input}
        initializers = {
            tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs
        }
        constants: dict[str, _Maker] = {**outer, **initializers}
        movers: dict[str, onnx.NodeProto] = {}
        for node in graph.node:
            inner = [*bodies(node)]
            for body in inner:
                self.contractions(body, constants)
            if not inner and all(name in constants for name in node.input if name):
                constants.update(dict.fromkeys(node.output, node))
                continue
            movers.update(dict.fromkeys(node.output if node.op_type in _MOVES else (), node))
            sources, variable_operands = self._weights(node, constants, graph)
            # A constant that the importer makes of a node has the name of the node's result.
            names = sources.union(node.output)
            kind = self.rounding.operand(names) if variable_operands else ""
            for number in variable_operands if kind else ():
                name = node.input[number]
                node.input[number] = f"{name}/{kind}"
                if kind == BYTES:
                    self.bytes.add(name)
                    continue
                self.kinds[name] = kind
                if self.rounding.spread:
                    self.kinds.update(
                        dict.fromkeys(_sources_of_moves(name, movers, constants), kind)
                    )

    def _weights(
        self, node: onnx.NodeProto, constants: Mapping[str, _Maker], graph: onnx.GraphProto
    ) -> tuple[frozenset[str], list[int]]:
        """Rounds the constant operands of a contraction.

        Returns the model's constants from which they are computed, and the positions of the
        operands that are not constant.
        """
        sources: frozenset[str] = frozenset()
        variable_operands = []
        for number, axis in _axes(node).items():
            name = next(iter(node.input[number : number + 1]), "")
            if name and name not in constants:
                variable_operands.append(number)
                continue
            made_of, array = self._constant(name, constants) if name else (sources, None)
            state = _STATES.get(node.op_type) == number
            sources |= frozenset() if state else made_of
            if array is not None and array.dtype.kind == "f" and array.ndim > 1:
                along = int(np.argmax(array.shape[1:])) + 1 if axis is None else axis
                node.input[number] = f"{name}/{node.output[0]}"
                rounded = self.rounding.weight(made_of, array, along, state)
                graph.initializer.append(from_array(rounded, node.input[number]))
                self.read |= made_of
        return sources, variable_operands

    def _constant(
        self, name: str, constants: Mapping[str, _Maker]
    ) -> tuple[frozenset[str], Array | None]:
        """Returns the model's constants from which `name` is computed, and the elements of `name`.

        The elements are None if ONNX's reference evaluator fails.
        """
        makers: dict[str, _Maker] = {}
        pending = [name]
        while pending:
            current = pending.pop()
            maker = makers[current] = constants[current]
            if isinstance(maker, onnx.NodeProto):
                pending += [part for part in maker.input if part and part not in makers]
        sources = frozenset(n for n, maker in makers.items() if not getattr(maker, "input", ()))
        tensors = [maker for maker in makers.values() if isinstance(maker, onnx.TensorProto)]
        if len(makers) == len(tensors):
            return sources, to_array(tensors[0])
        maker_ids = {id(m) for m in makers.values() if isinstance(m, onnx.NodeProto)}
        nodes = {id(m): m for m in constants.values() if id(m) in maker_ids}.values()
        result = [onnx.ValueInfoProto(name=name)]
        graph = make_graph([*nodes], "constants", [], result, tensors)
        try:
            (elements,) = ReferenceEvaluator(graph, opsets=dict(self.opsets)).run(None, {})
        except Exception:  # the evaluator's errors have many types
            return sources, None
        return sources, np.asarray(elements)

    def casts(self, graph: onnx.GraphProto) -> None:
        """Adds the nodes that round a tensor, each behind the node that computes the tensor."""
        nodes = [*self._roundings(value.name for value in graph.input)]
        for node in graph.node:
            for body in bodies(node):
                self.casts(body)
            if self.rounding.spread:
                for number, name in enumerate(node.input):
                    if name in self.kinds:
                        node.input[number] = f"{name}/{self.kinds[name]}"
            results = [*node.output]
            nodes += [node, *self._other_sum(node), *self._roundings(results)]
        del graph.node[:]
        graph.node.extend(nodes)

    def _other_sum(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Renames the result of a sum, and yields nodes that compute the old name from it.

        They change the sum by about as much as another order of summation would.
        """
        if node.op_type in _SUMS and node.output[0] in self.floats:
            name = node.output[0]
            rng = np.random.default_rng([self.rounding.seed, *name.encode()])
            factor = np.array(1 + SUM_ERROR * rng.standard_normal(), np.float32)
            node.output[0], other = f"{name}/sum", f"{name}/factor"
            yield make_node("Constant", [], [other], value=from_array(factor))
            yield make_node("Mul", [node.output[0], other], [name])

    def _roundings(self, names: Iterable[str]) -> Iterator[onnx.NodeProto]:
        """Yields nodes that round f32 tensors to the nearest values of their types."""
        for name in names:
            if name in self.bytes:
                yield from self._as_bytes(name, f"{name}/{BYTES}")
            kind = self.kinds.get(name)
            result = f"{name}/{kind}"
            if kind is None:
                continue
            if kind == "f16" or (kind == "bf16" and self.opsets.get("", 0) >= _BF16_OPSET):
                narrow = f"{result}/narrow"
                yield make_node("Cast", [name], [narrow], to=_ELEMENTS[kind])
                yield make_node("Cast", [narrow], [result], to=onnx.TensorProto.FLOAT)
                continue
            splits = from_array(np.array(splitter(kind), np.float32))
            factor, raised, low = (f"{result}/{part}" for part in ("factor", "raised", "low"))
            yield make_node("Constant", [], [factor], value=splits)
            yield make_node("Mul", [name, factor], [raised])
            yield make_node("Sub", [raised, name], [low])
            yield make_node("Sub", [raised, low], [result])

    def _as_bytes(self, name: str, result: str) -> Iterator[onnx.NodeProto]:
        """Yields nodes that round each group of neighbours to bytes with a common scale."""
        numbers = {"limit": np.float32(127), "least": np.float32(LEAST), "by": [-1, GROUP]}
        numbers |= {"axes": [-1]}
        for part, value in numbers.items():
            yield make_node("Constant", [], [f"{result}/{part}"], value=from_array(np.array(value)))
        reads_axes = self.opsets.get("", 0) >= _AXES_OPSET
        for text in _BYTE_NODES.splitlines():
            op, output, *operands = text.split()
            is_old = op == "ReduceMax" and not reads_axes
            inputs = [name if part == "x" else f"{result}/{part}" for part in operands]
            output = result if output == "y" else f"{result}/{output}"
            yield (
                make_node(op, inputs[:1], [output], axes=[-1])
                if is_old
                else make_node(op, inputs, [output])
            )


def _sources_of_moves(
    name: str, movers: Mapping[str, onnx.NodeProto], constants: Mapping[str, _Maker]
) -> Iterator[str]:
    """Yields the tensors whose elements `name` holds, possibly in another order."""
    pending = [name]
    while pending:
        maker = movers.get(pending.pop())
        if maker is not None:
            parts = maker.input if maker.op_type == "Concat" else maker.input[:1]
            pending += [part for part in parts if part not in constants]
            yield from (part for part in parts if part not in constants)


def _axes(node: onnx.NodeProto) -> Mapping[int, int | None]:
    flags = {item.name: item.i for item in node.attribute}
    if (node.domain, node.op_type) == ("com.microsoft", "MatMulNBits"):
        return {0: -1, 1: -1}  # the bytes of the levels are no floats, so they are not rounded
    if node.op_type == "Gemm":
        return {0: -2 if flags.get("transA") else -1, 1: -1 if flags.get("transB") else -2}
    return _AXES.get(node.op_type, {}) if node.domain in ("", "ai.onnx") else {}
