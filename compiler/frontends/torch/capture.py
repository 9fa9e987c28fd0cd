"""Graphs that torch.compile captured, as functions that run what tcc makes of them."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tcc.errors import UserError
from tcc.frontends.torch.exported import decomposed, exported
from tcc.record import record
from torch.multiprocessing.reductions import StorageWeakRef

Compile = Callable[[Any], Callable[..., Any]]
_STATIC = "_dynamo_static_input_type"  # torch marks with it what a module owns


@record
class _Made:
    """A compiled program; `sizes` are those of its tensors, expressions where they are open, and
    `ranges` the least and largest value of their symbols.  A run updates the tensors `updates`;
    `memory` names the constants' own, so that no later memory has the same name."""

    run: Callable[..., Any]
    sizes: tuple[tuple[Any, ...], ...]
    ranges: Mapping[Any, Any]
    updates: tuple[int, ...]
    memory: tuple[StorageWeakRef, ...]

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

    def results(self, given: Sequence[Any]) -> Sequence[Any]:
        """Of a run; programs update rows that follow each other, so others are copied there and
        back.  Raises UserError where the order of updates and reads would matter."""
        for number in self.updates:
            if any(n != number and _overlap(given[number], t) for n, t in enumerate(given)):
                raise UserError(
                    "two inputs share memory, and the model updates one of them in place",
                    hint="give a copy of one of them",
                )
        held = list(given)
        for number in self.updates:
            held[number] = given[number].contiguous()
        found: Sequence[Any] = self.run(*held)
        for number in self.updates:
            if held[number] is not given[number]:
                given[number].copy_(held[number])
            elif not given[number].is_inference():  # torch did not see it
                torch.autograd.graph.increment_version(given[number])
        return found


class Captured:
    """A captured graph.  Sizes that torch leaves open stay open: one program serves them all, and
    other sizes, numbers and element types get one of their own when they are first seen.  Tensors
    that the module owns become constants, without a copy, but for those that it updates and those
    of inference mode.  Their places and torch's counts of their updates are compared at every call;
    torch does not count what is written to `.data` or to a NumPy view."""

    def __init__(self, module: Any, examples: Sequence[Any], compile: Compile) -> None:
        self._module = module
        self._compile = compile
        places = module.graph.find_nodes(op="placeholder")
        pairs = enumerate(zip(places, examples, strict=True))
        self._owned = frozenset(n for n, (node, example) in pairs if _is_owned(node, example))
        self._numbers = frozenset(n for n, node in enumerate(places) if _is_number(node))
        self._open = {n: _open_axes(node) for n, node in enumerate(places)}
        self._derived = _derived(places, self._open)
        self._made: dict[Any, list[_Made]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """The results of the graph for its inputs, in torch's order.  Where one of these requires
        gradients, so do the results, and UserError is raised when they are computed."""
        learning = [a for a in arguments if _learns(a)] if torch.is_grad_enabled() else []
        if not learning:
            return self._results(arguments)
        results: tuple[Any, ...] = _Inference.apply(lambda: self._results(arguments), *learning)
        return results

    def _results(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        arguments = tuple(a.detach() if _learns(a) else a for a in arguments)
        arguments = tuple(a.item() if n in self._numbers else a for n, a in enumerate(arguments))
        made = self._made_for(arguments)
        return tuple(made.results(self._given(arguments)))

    def _made_for(self, arguments: Sequence[Any]) -> _Made:
        key = tuple(self._key(n, argument) for n, argument in enumerate(arguments))
        given = self._given(arguments)
        listed = self._made.setdefault(key, [])
        made = next((m for m in listed if m.takes(given)), None)
        if made is None:
            program = self._exported(arguments)
            whole = decomposed(program)
            changed = {_number_of(t) for t in whole.graph_signature.buffers_to_mutate.values()}
            if changed:
                self._owned -= changed
                return self._made_for(arguments)
            made = self._build(program, whole, arguments)
            listed.append(made)
        return made

    def _key(self, number: int, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            # as texts 0.0 and -0.0 are two, NaN is one, and True is not 1
            return None if number in self._derived else (type(argument), str(argument))
        if number in self._owned:
            return argument.untyped_storage()._cdata, argument.data_ptr(), argument._version
        return argument.ndim, argument.dtype

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors that change from call to call."""
        return [
            a
            for n, a in enumerate(arguments)
            if n not in self._owned and isinstance(a, torch.Tensor)
        ]

    def _exported(self, arguments: Sequence[Any]) -> Any:
        bound = _Bound(self._module, arguments, self._owned, self._derived, self._numbers)
        given = tuple(_apart(self._given(arguments)))
        shapes = [{a: torch.export.Dim.AUTO for a in self._open[n]} for n in bound.order]
        return exported(bound, given, (tuple(shapes),) if any(shapes) else None)

    def _build(self, program: Any, whole: Any, arguments: Sequence[Any]) -> _Made:
        """`whole` is the program decomposed, which tells what it updates."""
        inputs = {n.name: n.meta["val"] for n in program.graph.find_nodes(op="placeholder")}
        names = program.graph_signature.user_inputs
        sizes = tuple(
            tuple(d if isinstance(d, int) else d.node.expr for d in inputs[name].shape)
            for name in names
        )
        updated = set(whole.graph_signature.user_inputs_to_mutate.values())
        updates = tuple(n for n, name in enumerate(names) if name in updated)
        memory = tuple(StorageWeakRef(arguments[n].untyped_storage()) for n in self._owned)
        run = self._runner(program, bool(updates))
        return _Made(run, sizes, program.range_constraints, updates, memory)

    def _runner(self, program: Any, updates: bool) -> Callable[..., Any]:
        specs = program.graph_signature.output_specs
        fixed = [_fixed(spec) for spec in specs]
        if not any(is_open for is_open, _ in fixed) and not updates:
            return lambda *given: [value for _, value in fixed]
        run = self._compile(program)
        (results,) = next(iter(program.graph.find_nodes(op="output"))).args
        like = [getattr(result, "meta", {}).get("val") for result in results]

        def call(*given: Any) -> list[Any]:
            found = run(*given)
            tensors = iter(found if isinstance(found, tuple) else (found,))
            values = [next(tensors) if is_open else value for is_open, value in fixed]
            return [_as_torch(value, own) for value, own in zip(values, like, strict=True)]

        return call


class _Inference(torch.autograd.Function):  # type: ignore[misc]
    """Calls a function of no arguments; its results depend on tensors without known gradients."""

    @staticmethod
    def forward(_: Any, run: Callable[[], tuple[Any, ...]], *learning: Any) -> tuple[Any, ...]:
        return run()

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        raise UserError(
            "gradients of a model that tcc compiled are asked for",
            why="tcc compiles inference",
            hint="train the model before torch.compile, or compile it with another backend",
        )


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
        numbers: frozenset[int],
    ) -> None:
        super().__init__()
        self.captured = module
        self.order = [
            n for n, a in enumerate(arguments) if n not in owned and isinstance(a, torch.Tensor)
        ]
        self._derived = derived
        self._fixed = [
            _Number(a) if n in numbers else None if isinstance(a, torch.Tensor) else a
            for n, a in enumerate(arguments)
        ]
        for number in sorted(owned):
            self.register_buffer(f"owned_{number}", arguments[number].detach())
        self._owned = owned

    def forward(self, *given: Any) -> Any:
        arguments: list[Any] = list(self._fixed)
        for number, tensor in zip(self.order, given, strict=True):
            arguments[number] = tensor
        for number in self._owned:
            arguments[number] = getattr(self, f"owned_{number}")
        for number, (source, axis) in self._derived.items():
            arguments[number] = arguments[source].shape[axis]
        return self.captured(*arguments)


@record
class _Number:
    """Stands for the tensor in which torch hands over a float that changed once."""

    value: float

    def item(self) -> float:
        return self.value


def _is_number(node: Any) -> bool:
    """Whether an input is a float in a tensor, of which the graph takes nothing but the number."""
    known = node.meta.get("example_value")
    alone = isinstance(known, torch.Tensor) and known.ndim == 0 and known.dtype == torch.float64
    asked = [user.op == "call_method" and user.target == "item" for user in node.users]
    return alone and bool(asked) and all(asked)


def _number_of(target: str) -> int:
    """Of the owned tensor that `_Bound` calls `target`."""
    return int(target.rpartition("_")[2])


def _overlap(one: Any, other: Any) -> bool:
    """Whether two tensors have an element of memory in common."""
    elements = one.numel() and other.numel()
    return bool(elements and np.shares_memory(_placed(one), _placed(other)))


def _placed(tensor: Any) -> Any:
    """Where a tensor lies, as an array of which nobody reads the elements."""
    size = tensor.element_size()
    steps = tuple(size * step for step in tensor.stride())
    memory = {"version": 3, "typestr": f"|V{size}", "data": (tensor.data_ptr(), False)}
    memory |= {"shape": tuple(tensor.shape), "strides": steps}
    return np.asarray(SimpleNamespace(__array_interface__=memory))


def _apart(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors, or copies: torch cannot export updates of one among several in one storage."""
    memory = {tensor.untyped_storage()._cdata for tensor in tensors}
    return tensors if len(memory) == len(tensors) else [tensor.clone() for tensor in tensors]


def _as_torch(value: Any, like: Any) -> Any:
    """A result as torch's graph gives it: programs without inputs return NumPy's arrays."""
    if isinstance(like, torch.SymInt):
        return int(value)
    if isinstance(like, torch.Tensor) and like.is_complex():
        return torch.view_as_complex(torch.as_tensor(value))
    if isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        return value
    bytes_ = np.array(value).reshape(-1).view(np.uint8)
    return torch.from_numpy(bytes_).view(like.dtype).reshape(like.shape)


def _open_axes(node: Any) -> tuple[int, ...]:
    """The axes of an input that torch captured for any size."""
    known = node.meta.get("example_value")
    shape = known.shape if isinstance(known, torch.Tensor) else ()
    return tuple(axis for axis, size in enumerate(shape) if isinstance(size, torch.SymInt))


def _derived(
    places: Sequence[Any], opened: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, int]]:
    """Inputs that are sizes of other inputs: of which, and along which axis."""
    known = [node.meta.get("example_value") for node in places]
    sources = {str(known[n].shape[axis]): (n, axis) for n, axes in opened.items() for axis in axes}
    sizes = ((n, str(size)) for n, size in enumerate(known) if isinstance(size, torch.SymInt))
    return {n: sources[size] for n, size in sizes if size in sources}


def _fixed(spec: Any) -> tuple[bool, Any]:
    """Whether an output is computed, and else its value."""
    if type(spec.arg).__name__ == "ConstantArgument":
        return spec.arg.value is not None, spec.arg.value
    return True, None


def _is_owned(node: Any, example: Any) -> bool:
    """Whether an input is a parameter or buffer of the module, of which torch counts updates."""
    if example is None or (isinstance(example, torch.Tensor) and example.is_inference()):
        return False
    return isinstance(example, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {})


def _learns(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.requires_grad
