"""Turns graphs that torch.compile captured into functions that run the compiled graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tcc.errors import UserError
from tcc.frontends.torch.exported import decomposed, exported
from tcc.frozen import frozen
from tcc.zipped import zip_equal
from torch.multiprocessing.reductions import StorageWeakRef

Compile = Callable[[Any], Callable[..., Any]]
_STATIC = "_dynamo_static_input_type"  # torch marks tensors that a module owns with this attribute


@frozen
class _CompiledProgram:
    """A compiled program.

    `sizes` are those of its tensors, expressions for symbolic sizes; `ranges` are the smallest and
    largest values of the symbols.  A run updates the tensors `updates` in place.  `memory` keeps
    weak references to the constants' storages, so that no later storage gets the same address.
    """

    call: Callable[..., Any]
    sizes: tuple[tuple[Any, ...], ...]
    ranges: Mapping[Any, Any]
    updates: tuple[int, ...]
    memory: tuple[StorageWeakRef, ...]

    def takes(self, tensors: Sequence[Any]) -> bool:
        """True if the program was compiled for tensors of the sizes of `tensors`."""
        dims = [
            pair
            for dim, tensor in zip_equal(self.sizes, tensors)
            for pair in zip_equal(dim, tensor.shape)
        ]
        symbols = {dim: size for dim, size in dims if getattr(dim, "is_Symbol", False)}
        return all(
            size == (dim if isinstance(dim, int) else dim.subs(symbols)) for dim, size in dims
        ) and all(r.lower <= symbols.get(s, r.lower) <= r.upper for s, r in self.ranges.items())

    def results(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Runs the program and returns its results.

        Programs update dense tensors only, so a tensor with other strides is copied, updated and
        copied back.  Raises UserError where the order of updates and reads would matter.
        """
        for number in self.updates:
            if any(n != number and _overlap(tensors[number], t) for n, t in enumerate(tensors)):
                raise UserError(
                    "two inputs share memory, and the model updates one of them in place",
                    hint="give a copy of one of them",
                )
        contiguous_tensors = list(tensors)
        for number in self.updates:
            contiguous_tensors[number] = tensors[number].contiguous()
        values: Sequence[Any] = self.call(*contiguous_tensors)
        for number in self.updates:
            if contiguous_tensors[number] is not tensors[number]:
                tensors[number].copy_(contiguous_tensors[number])
            elif not tensors[number].is_inference():  # torch did not count the program's update
                torch.autograd.graph.increment_version(tensors[number])
        return values


class Captured:
    """A captured graph.

    One program serves all values of the sizes that torch left symbolic.  Other sizes, numbers and
    dtypes get their own program at the first call.  Tensors that the module owns become constants,
    without a copy, except tensors that it updates and tensors of inference mode.  Each call
    compares their addresses and torch's counts of their updates; torch does not count writes to
    `.data` or to a NumPy view.
    """

    def __init__(self, module: Any, examples: Sequence[Any], compile: Compile) -> None:
        self._module = module
        self._compile = compile
        places = module.graph.find_nodes(op="placeholder")
        pairs = enumerate(zip_equal(places, examples))
        self._owned = frozenset(n for n, (node, example) in pairs if _is_owned(node, example))
        self._numbers = frozenset(n for n, node in enumerate(places) if _is_number(node))
        self._open = {n: _open_axes(node) for n, node in enumerate(places)}
        self._derived = _size_inputs(places, self._open)
        self._programs: dict[Any, list[_CompiledProgram]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Returns the graph's results, in torch's order.

        If an input requires gradients, so do the results; then computing the gradients raises
        UserError.
        """
        learning = [a for a in arguments if _learns(a)] if torch.is_grad_enabled() else []
        if not learning:
            return self._results(arguments)
        results: tuple[Any, ...] = _Inference.apply(lambda: self._results(arguments), *learning)
        return results

    def _results(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        arguments = tuple(a.detach() if _learns(a) else a for a in arguments)
        arguments = tuple(a.item() if n in self._numbers else a for n, a in enumerate(arguments))
        program = self._made_for(arguments)
        return tuple(program.results(self._given(arguments)))

    def _made_for(self, arguments: Sequence[Any]) -> _CompiledProgram:
        key = tuple(self._key(n, argument) for n, argument in enumerate(arguments))
        tensors = self._given(arguments)
        compiled_programs = self._programs.setdefault(key, [])
        compiled = next((m for m in compiled_programs if m.takes(tensors)), None)
        if compiled is None:
            program = self._exported(arguments)
            plain = decomposed(program)
            changed = {_number_of(t) for t in plain.graph_signature.buffers_to_mutate.values()}
            if changed:
                self._owned -= changed
                return self._made_for(arguments)
            compiled = self._build(program, plain, arguments)
            compiled_programs.append(compiled)
        return compiled

    def _key(self, number: int, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            # Texts tell 0.0 from -0.0 and True from 1, and make NaN equal to itself.
            return None if number in self._derived else (type(argument), str(argument))
        if number in self._owned:
            return argument.untyped_storage()._cdata, argument.data_ptr(), argument._version
        return argument.ndim, argument.dtype

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the tensors that may differ from call to call: all that are not owned."""
        return [arguments[n] for n in _given_numbers(arguments, self._owned)]

    def _exported(self, arguments: Sequence[Any]) -> Any:
        bound = _Bound(self._module, arguments, self._owned, self._derived, self._numbers)
        tensors = tuple(_without_shared_storage(self._given(arguments)))
        shapes = [{a: torch.export.Dim.AUTO for a in self._open[n]} for n in bound.order]
        return exported(bound, tensors, (tuple(shapes),) if any(shapes) else None)

    def _build(
        self, program: Any, decomposed_program: Any, arguments: Sequence[Any]
    ) -> _CompiledProgram:
        """Compiles `program`.

        `decomposed_program` has no in-place updates; it tells which tensors the program updates.
        """
        inputs = {n.name: n.meta["val"] for n in program.graph.find_nodes(op="placeholder")}
        names = program.graph_signature.user_inputs
        sizes = tuple(
            tuple(d if isinstance(d, int) else d.node.expr for d in inputs[name].shape)
            for name in names
        )
        updated = set(decomposed_program.graph_signature.user_inputs_to_mutate.values())
        updates = tuple(n for n, name in enumerate(names) if name in updated)
        memory = tuple(StorageWeakRef(arguments[n].untyped_storage()) for n in self._owned)
        call = self._runner(program, bool(updates))
        return _CompiledProgram(call, sizes, program.range_constraints, updates, memory)

    def _runner(self, program: Any, updates: bool) -> Callable[..., Any]:
        fixed = [_fixed(spec) for spec in program.graph_signature.output_specs]
        if not any(is_open for is_open, _ in fixed) and not updates:
            return lambda *tensors: [value for _, value in fixed]
        compiled_call = self._compile(program)
        (results,) = next(iter(program.graph.find_nodes(op="output"))).args
        like = [getattr(result, "meta", {}).get("val") for result in results]

        def call(*tensors: Any) -> list[Any]:
            returned = compiled_call(*tensors)
            computed = iter(returned if isinstance(returned, tuple) else (returned,))
            values = [next(computed) if is_open else value for is_open, value in fixed]
            return [_as_torch(value, example) for value, example in zip_equal(values, like)]

        return call


class _Inference(torch.autograd.Function):  # type: ignore[misc]
    """Calls a function without arguments.

    For torch its results depend on the tensors `learning`. Gradients with respect to these tensors
    raise UserError.
    """

    @staticmethod
    def forward(_: Any, compute: Callable[[], tuple[Any, ...]], *learning: Any) -> tuple[Any, ...]:
        return compute()

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        raise UserError(
            "gradients of a model that tcc compiled are asked for",
            why="tcc compiles inference",
            hint="train the model before torch.compile, or compile it with another backend",
        )


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """The captured graph as a function of the tensors that may differ from call to call.

    `order` has the number of each tensor among the graph's inputs.
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
        self.order = _given_numbers(arguments, owned)
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
        for number, tensor in zip_equal(self.order, given):
            arguments[number] = tensor
        for number in self._owned:
            arguments[number] = getattr(self, f"owned_{number}")
        for number, (source, axis) in self._derived.items():
            arguments[number] = arguments[source].shape[axis]
        return self.captured(*arguments)


@frozen
class _Number:
    """A float in place of the tensor of rank zero in which torch passes it.

    torch passes a float so after its value has changed between two calls.
    """

    value: float

    def item(self) -> float:
        return self.value


def _given_numbers(arguments: Sequence[Any], owned: Collection[int]) -> list[int]:
    """Returns the input numbers of the tensors that are not owned."""
    tensors = (n for n, a in enumerate(arguments) if isinstance(a, torch.Tensor))
    return [n for n in tensors if n not in owned]


def _is_number(node: Any) -> bool:
    """True if an input is an f64 tensor of rank 0, and the graph only calls its method `item`."""
    meta = node.meta.get("example_value")
    scalar = isinstance(meta, torch.Tensor) and meta.ndim == 0 and meta.dtype == torch.float64
    reads = [user.op == "call_method" and user.target == "item" for user in node.users]
    return scalar and bool(reads) and all(reads)


def _number_of(target: str) -> int:
    """Returns the input number of the owned tensor that `_Bound` calls `target`."""
    return int(target.rpartition("_")[2])


def _overlap(one: Any, other: Any) -> bool:
    """True if two tensors share an element of memory."""
    elements = one.numel() and other.numel()
    return bool(elements and np.shares_memory(_memory_layout(one), _memory_layout(other)))


def _memory_layout(tensor: Any) -> Any:
    """Returns an array with the tensor's address, sizes and strides; its elements are never
    read."""
    size = tensor.element_size()
    steps = tuple(size * step for step in tensor.stride())
    memory = {"version": 3, "typestr": f"|V{size}", "data": (tensor.data_ptr(), False)}
    memory |= {"shape": tuple(tensor.shape), "strides": steps}
    return np.asarray(SimpleNamespace(__array_interface__=memory))


def _without_shared_storage(tensors: Sequence[Any]) -> Sequence[Any]:
    """Returns the tensors; copies of them if several share a storage, because torch cannot export
    updates then."""
    memory = {tensor.untyped_storage()._cdata for tensor in tensors}
    return tensors if len(memory) == len(tensors) else [tensor.clone() for tensor in tensors]


def _as_torch(value: Any, like: Any) -> Any:
    """Returns a result in the type of torch's graph; programs without inputs return NumPy
    arrays."""
    if isinstance(like, torch.SymInt):
        return int(value)
    if isinstance(like, torch.Tensor) and like.is_complex():
        return torch.view_as_complex(torch.as_tensor(value))
    if isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        return value
    bytes_ = np.array(value).reshape(-1).view(np.uint8)
    return torch.from_numpy(bytes_).view(like.dtype).reshape(like.shape)


def _open_axes(node: Any) -> tuple[int, ...]:
    """Returns the axes of an input that torch captured for any size."""
    example = node.meta.get("example_value")
    shape = example.shape if isinstance(example, torch.Tensor) else ()
    return tuple(axis for axis, size in enumerate(shape) if isinstance(size, torch.SymInt))


def _size_inputs(
    places: Sequence[Any], opened: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, int]]:
    """Returns for each input that is the size of a tensor the tensor's input number and the axis.

    The keys are the numbers of these inputs. `places` are the graph's inputs, and `opened` maps the
    number of an input to its axes of symbolic size.
    """
    metas = [node.meta.get("example_value") for node in places]
    sources = {str(metas[n].shape[axis]): (n, axis) for n, axes in opened.items() for axis in axes}
    sizes = ((n, str(size)) for n, size in enumerate(metas) if isinstance(size, torch.SymInt))
    return {n: sources[size] for n, size in sizes if size in sources}


def _fixed(spec: Any) -> tuple[bool, Any]:
    """Returns a pair for an output of the program.

    The first entry is True if the compiled call returns the output; the call leaves out an output
    that is always None. The second is the value of a constant output, and None for others.
    """
    if type(spec.arg).__name__ == "ConstantArgument":
        return spec.arg.value is not None, spec.arg.value
    return True, None


def _is_owned(node: Any, example: Any) -> bool:
    """True if an input is a parameter or buffer of the module whose updates torch counts."""
    if example is None or (isinstance(example, torch.Tensor) and example.is_inference()):
        return False
    return isinstance(example, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {})


def _learns(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.requires_grad
