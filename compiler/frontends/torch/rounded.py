"""Rounds the operands of a program's contractions while torch runs it, as `frontends.onnx.rounded`
does in a model.

    y = linear(x, w)   ->   y = linear(round(x), round(w))
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tcc.frontends.rounding import SUM_ERROR, Rounding, splitter
from tcc.frontends.torch.calls import Call, Constant, Ref, TorchProgram
from tcc.frontends.torch.retrace import called
from tcc.zipped import zip_equal

_CONTRACTIONS = frozenset(
    "linear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv3d convolution conv_transpose1d "
    "conv_transpose2d conv_transpose3d lstm gru rnn_tanh rnn_relu".split()
)
# The operands of contractions by name, and the axis along which each is summed.  None stands for
# the longest axis but the first, as in the window of a convolution.
_AXES: Mapping[str, int | None] = {
    **dict.fromkeys(("input", "weight", "params", "tensors")),
    **dict.fromkeys(("self", "mat1", "batch1"), -1),
    **dict.fromkeys(("other", "mat2", "batch2"), -2),
}
_MOVES = frozenset(
    "alias cat clone contiguous expand flatten permute reshape squeeze t transpose unflatten "
    "unsqueeze view".split()
)
_SUMS = frozenset("sum mean adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d".split())
_NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}


def _operator(call: Call) -> str:
    """Returns the name of an ATen operator without its overload."""
    return call.target.removeprefix("aten.").partition(".")[0]


def _operands(call: Call) -> Mapping[str, int | None]:
    """Returns the operands of a contraction with their summed axes; empty for other calls.  The
    tensor that `addmm` adds is not an operand."""
    name = _operator(call)
    axes = _AXES if name in _CONTRACTIONS else {}
    return {n: axes[n] for n in axes.keys() & call.arguments if "add" not in name or n != "self"}


def _read(arguments: Iterable[Any]) -> Iterator[str]:
    """Yields the names of the values that arguments refer to."""
    for value in arguments:
        if isinstance(value, list):
            yield from _read(value)
        elif isinstance(value, Ref):
            yield value.name


class Rounder:
    """Runs the calls of a program with rounded operands.

    `inputs` are the names of the program's inputs, states included. `weights` caches rounded
    weights of the program and rounding. `missed` are the constants to round that no contraction
    reads directly; all readers of them get the rounded values. Calls in a branch or a loop are not
    rounded.
    """

    def __init__(
        self,
        program: TorchProgram,
        rounding: Rounding,
        inputs: Collection[str],
        weights: dict[tuple[str, int | None], Any],
    ) -> None:
        self._rounding, self._weights = rounding, weights
        # `made_of` maps a value to the constants from which it is computed.  `_kinds` maps a value
        # that depends on inputs to the type to which it is rounded.
        made_of: dict[str, set[str]] = {
            name: {owner.name}
            for name, owner in program.owned.items()
            if isinstance(owner, Constant) and name not in inputs
        }
        self._sources, self._kinds = made_of, dict[str, str]()
        constants_read = set[str]()
        for call in program.block.calls:
            names = {*_read(call.arguments.values())}
            if names and names <= made_of.keys():
                made_of[call.name] = set().union(*(made_of[name] for name in names))
            operands = {*_read(call.arguments[name] for name in _operands(call))}
            sources = set().union(*(made_of.get(name, ()) for name in operands))
            constants_read |= sources
            kind = rounding.operand(sources)
            self._kinds.update(dict.fromkeys(operands - made_of.keys() if kind else (), kind))
        moves = (call for call in reversed(program.block.calls) if _operator(call) in _MOVES)
        for call in moves if rounding.spread else ():
            if call.name in self._kinds:
                names = {*_read(call.arguments.values())} - made_of.keys()
                self._kinds.update(dict.fromkeys(names, self._kinds[call.name]))
        self.missed = rounding.weights.keys() - constants_read

    def __call__(self, call: Call, arguments: Mapping[str, Any]) -> Any:
        """Returns the result of a call on these arguments, rounded."""
        rounded = {
            name: self._operand(arguments[name], call.arguments[name], axis)
            for name, axis in _operands(call).items()
        }
        result = called(call, {**arguments, **rounded})
        if self._rounding.noise and _operator(call) in _SUMS and _is_float(result):
            rng = np.random.default_rng([self._rounding.seed, *call.name.encode()])
            result = result * (1 + SUM_ERROR * rng.standard_normal())
        return self.seen(call.name, result)

    def seen(self, name: str, value: Any) -> Any:
        """Returns a value as its readers get it: rounded if it has a type for that."""
        return self._narrowed(name, value) if self._rounding.spread else value

    def _operand(self, value: Any, ref: Any, axis: int | None) -> Any:
        if isinstance(ref, list):
            return [self._operand(*pair, axis) for pair in zip_equal(value, ref)]
        if not isinstance(ref, Ref) or ref.name not in self._sources:
            return self._narrowed(getattr(ref, "name", ""), value)
        if value.dim() < 2 or not _is_float(value):
            return value
        if (ref.name, axis) not in self._weights:
            along = int(np.argmax(value.shape[1:])) + 1 if axis is None else axis
            weight = self._rounding.weight(self._sources[ref.name], value.numpy(), along)
            self._weights[ref.name, axis] = torch.as_tensor(weight)
        return self._weights[ref.name, axis]

    def _narrowed(self, name: str, value: Any) -> Any:
        """Rounds the elements of an f32 tensor to the type for the value `name`, if it has one."""
        kind = self._kinds.get(name)
        if kind is None or not _is_float(value):
            return value
        if kind in _NARROW:
            return value.to(_NARROW[kind]).to(value.dtype)
        raised = value * splitter(kind)
        return raised - (raised - value)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32
