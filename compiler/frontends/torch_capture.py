"""Graphs that torch.compile captured, as functions that run what tcc makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tcc.errors import UserError
from tcc.frontends.torch_exported import exported

Compile = Callable[[Any], Callable[..., Any]]
_STATIC = "_dynamo_static_input_type"  # torch marks with it what a module owns


class Captured:
    """A captured graph.  Each combination of input sizes is exported and compiled when it is first
    seen; tensors that the module owns become constants, and are compared at every call."""

    def __init__(self, module: Any, examples: Sequence[Any], compile: Compile) -> None:
        self._module = module
        self._compile = compile
        placeholders = module.graph.find_nodes(op="placeholder")
        pairs = enumerate(zip(placeholders, examples, strict=True))
        self._owned = frozenset(n for n, (node, example) in pairs if _is_owned(node, example))
        self._made: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """The results of the graph for its inputs, in torch's order."""
        if torch.is_grad_enabled() and any(_learns(a) for a in arguments):
            raise UserError(
                "gradients are asked for; tcc compiles inference",
                hint="call the model under torch.no_grad() or torch.inference_mode()",
            )
        key = tuple(self._key(n, argument) for n, argument in enumerate(arguments))
        if key not in self._made:
            self._made[key] = self._build(arguments)
        return tuple(self._made[key](*self._given(arguments)))

    def _key(self, number: int, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        if number in self._owned:
            return argument.data_ptr(), argument._version
        return tuple(argument.shape), argument.dtype

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors that change from call to call."""
        return [
            a
            for n, a in enumerate(arguments)
            if n not in self._owned and isinstance(a, torch.Tensor)
        ]

    def _build(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        bound = _Bound(self._module, arguments, self._owned)
        program = exported(bound, tuple(self._given(arguments)), None)
        fixed = [_fixed(spec) for spec in program.graph_signature.output_specs]
        if not any(is_open for is_open, _ in fixed):
            return lambda *given: [value for _, value in fixed]
        run = self._compile(program)

        def call(*given: Any) -> list[Any]:
            found = run(*given)
            tensors = iter(found if isinstance(found, tuple) else (found,))
            return [next(tensors) if is_open else value for is_open, value in fixed]

        return call


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """The captured graph as a function of what changes from call to call."""

    def __init__(self, module: Any, arguments: Sequence[Any], owned: frozenset[int]) -> None:
        super().__init__()
        self.captured = module
        self._order: list[Any] = []
        for number, argument in enumerate(arguments):
            if number in owned:
                self.register_buffer(f"owned_{number}", argument.detach())
                self._order.append(f"owned_{number}")
            else:
                self._order.append(None if isinstance(argument, torch.Tensor) else (argument,))

    def forward(self, *given: Any) -> Any:
        tensors = iter(given)
        return self.captured(*(self._argument(place, tensors) for place in self._order))

    def _argument(self, place: Any, tensors: Any) -> Any:
        if place is None:
            return next(tensors)
        return getattr(self, place) if isinstance(place, str) else place[0]


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
