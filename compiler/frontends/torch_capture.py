"""Graphs that torch.compile captured, as functions that run what tcc makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tcc.errors import UserError
from tcc.frontends.torch_exported import exported

Compile = Callable[[Any], Callable[..., Any]]
_STATIC = "_dynamo_static_input_type"  # torch marks with it what a module owns


@dataclass(frozen=True, slots=True)
class _Made:
    """A compiled program; `sizes` are those of its tensors, expressions where they are open, and
    `ranges` the least and largest value of their symbols."""

    run: Callable[..., Any]
    sizes: tuple[tuple[Any, ...], ...]
    ranges: Mapping[Any, Any]

    def takes(self, tensors: Sequence[Any]) -> bool:
        """Whether the program was compiled for tensors of these sizes."""
        dims = [
            pair
            for own, tensor in zip(self.sizes, tensors, strict=True)
            for pair in zip(own, tensor.shape, strict=True)
        ]
        symbols = {own: size for own, size in dims if getattr(own, "is_Symbol", False)}
        return all(
            size == (own if isinstance(own, int) else own.subs(symbols)) for own, size in dims
        ) and all(r.lower <= symbols.get(s, r.lower) <= r.upper for s, r in self.ranges.items())


class Captured:
    """A captured graph.  Sizes that torch leaves open stay open: one program serves them all, and
    other sizes, numbers and element types get one of their own when they are first seen.  Tensors
    that the module owns become constants, without a copy; they are compared at every call."""

    def __init__(self, module: Any, examples: Sequence[Any], compile: Compile) -> None:
        self._module = module
        self._compile = compile
        places = module.graph.find_nodes(op="placeholder")
        pairs = enumerate(zip(places, examples, strict=True))
        self._owned = frozenset(n for n, (node, example) in pairs if _is_owned(node, example))
        self._open = {n: _open_axes(node) for n, node in enumerate(places) if n not in self._owned}
        self._derived = _derived(places, self._open)
        self._made: dict[Any, list[_Made]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """The results of the graph for its inputs, in torch's order."""
        if torch.is_grad_enabled() and any(_learns(a) for a in arguments):
            raise UserError(
                "gradients are asked for; tcc compiles inference",
                hint="call the model under torch.no_grad() or torch.inference_mode()",
            )
        key = tuple(self._key(n, argument) for n, argument in enumerate(arguments))
        given = self._given(arguments)
        listed = self._made.setdefault(key, [])
        made = next((m for m in listed if m.takes(given)), None)
        if made is None:
            made = self._build(arguments)
            listed.append(made)
        return tuple(made.run(*given))

    def _key(self, number: int, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return None if number in self._derived else argument
        if number in self._owned:
            version = 0 if argument.is_inference() else argument._version
            return argument.data_ptr(), version
        return argument.ndim, argument.dtype

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors that change from call to call."""
        return [
            a
            for n, a in enumerate(arguments)
            if n not in self._owned and isinstance(a, torch.Tensor)
        ]

    def _build(self, arguments: Sequence[Any]) -> _Made:
        bound = _Bound(self._module, arguments, self._owned, self._derived)
        given = tuple(self._given(arguments))
        shapes = [{a: torch.export.Dim.AUTO for a in self._open[n]} for n in bound.order]
        program = exported(bound, given, (tuple(shapes),) if any(shapes) else None)
        run = self._runner(program)
        inputs = {n.name: n.meta["val"] for n in program.graph.find_nodes(op="placeholder")}
        sizes = tuple(
            tuple(d if isinstance(d, int) else d.node.expr for d in inputs[name].shape)
            for name in program.graph_signature.user_inputs
        )
        return _Made(run, sizes, program.range_constraints)

    def _runner(self, program: Any) -> Callable[..., Any]:
        specs = program.graph_signature.output_specs
        fixed = [_fixed(spec) for spec in specs]
        if not any(is_open for is_open, _ in fixed):
            return lambda *given: [value for _, value in fixed]
        run = self._compile(program)
        numbers = [type(spec.arg).__name__ == "SymIntArgument" for spec in specs]

        def call(*given: Any) -> list[Any]:
            found = run(*given)
            tensors = iter(found if isinstance(found, tuple) else (found,))
            results = [next(tensors) if is_open else value for is_open, value in fixed]
            return [int(r) if number else r for r, number in zip(results, numbers, strict=True)]

        return call


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """The captured graph as a function of the tensors that change from call to call.

    `order` has the number of each of them among the graph's inputs.
    """

    def __init__(
        self,
        module: Any,
        arguments: Sequence[Any],
        owned: frozenset[int],
        derived: Mapping[int, tuple[int, int]],
    ) -> None:
        super().__init__()
        self.captured = module
        self.order = [
            n for n, a in enumerate(arguments) if n not in owned and isinstance(a, torch.Tensor)
        ]
        self._derived = derived
        self._fixed = [None if isinstance(a, torch.Tensor) else a for a in arguments]
        for number in sorted(owned):
            self.register_buffer(f"owned_{number}", arguments[number].detach())
        self._owned = owned

    def forward(self, *given: Any) -> Any:
        tensors = dict(zip(self.order, given, strict=True))
        return self.captured(*(self._argument(n, tensors) for n in range(len(self._fixed))))

    def _argument(self, number: int, tensors: Mapping[int, Any]) -> Any:
        if number in tensors:
            return tensors[number]
        if number in self._owned:
            return getattr(self, f"owned_{number}")
        if number in self._derived:
            source, axis = self._derived[number]
            return tensors[source].shape[axis]
        return self._fixed[number]


def _open_axes(node: Any) -> tuple[int, ...]:
    """The axes of an input that torch captured for any size."""
    known = node.meta.get("example_value")
    shape = known.shape if isinstance(known, torch.Tensor) else ()
    return tuple(axis for axis, size in enumerate(shape) if isinstance(size, torch.SymInt))


def _derived(
    places: Sequence[Any], opened: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, int]]:
    """Inputs that are sizes of other inputs: of which, and along which axis."""
    sources: dict[str, tuple[int, int]] = {}
    for number, axes in opened.items():
        for axis in axes:
            size = places[number].meta["example_value"].shape[axis]
            sources.setdefault(str(size), (number, axis))
    found = {}
    for number, node in enumerate(places):
        known = node.meta.get("example_value")
        if isinstance(known, torch.SymInt) and str(known) in sources:
            found[number] = sources[str(known)]
    return found


def _fixed(spec: Any) -> tuple[bool, Any]:
    """Whether an output is computed, and else its value."""
    if type(spec.arg).__name__ == "ConstantArgument":
        return spec.arg.value is not None, spec.arg.value
    return True, None


def _is_owned(node: Any, example: Any) -> bool:
    """Whether an input is a parameter or buffer of the module."""
    return isinstance(example, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {})


def _learns(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.requires_grad
