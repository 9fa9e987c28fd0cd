"""Exports modules with torch, decomposes programs to supported operators, and describes them."""

import inspect
import warnings
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from tcc.errors import UserError
from tcc.frontends.torch.calls import (
    Call,
    CallBlock,
    Constant,
    ElementType,
    Fixed,
    Formula,
    Known,
    Number,
    Opaque,
    Ranks,
    Ref,
    Size,
    Tensor,
    TorchProgram,
)
from tcc.frontends.torch.outputs import all_names, result_names
from tcc.frontends.torch.support import GETITEM, has_converter
from tcc.frontends.torch.tensors import PARTS, part_type
from tcc.ir.op import Array
from tcc.ir.types import BF16, DType
from tcc.zipped import zip_equal
from torch._decomp import decomposition_table
from torch.export import Dim
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.utils import _pytree as pytree


def exported(module: Any, inputs: Any, dynamic_shapes: Any) -> Any:
    """Exports the module with torch; raises `UserError` where torch cannot.

    torch treats sizes 0 and 1 as fixed. So the error names examples with such a size along an axis
    that should be symbolic.
    """
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    positional_inputs = tuple(positional) if isinstance(positional, list | tuple) else (positional,)
    what = f"torch cannot export {type(module).__name__}"
    try:
        with refusing(what):
            return torch.export.export(
                module, positional_inputs, dict(named), dynamic_shapes=dynamic_shapes, strict=False
            )
    except UserError as error:
        bound = inspect.signature(module.forward).bind(*positional_inputs, **named).arguments
        small = next(_fixed_sizes(bound, dynamic_shapes, "inputs"), None)
        if small is None:
            raise
        raise UserError(
            what,
            where=small,
            why="the example has size 0 or 1 where dynamic_shapes has a symbolic size, and "
            "torch.export takes 0 and 1 as fixed",
            hint="give an example of size 2 or more there",
        ) from error


def _fixed_sizes(example: Any, spec: Any, where: str) -> Iterator[str]:
    """Yields the places where a tensor of the example has size 0 or 1 although the size should be
    symbolic.

    `spec` is the dynamic shapes of `example`. A place reads like `inputs['x'], axis 0`.
    """
    if isinstance(example, torch.Tensor):
        sizes = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for axis, size in sizes:
            symbolic = size is not None and not isinstance(size, int) and size is not Dim.STATIC
            if symbolic and example.shape[axis] < 2:
                yield f"{where}, axis {axis}"
    elif isinstance(example, Mapping) and spec:
        specs = spec if isinstance(spec, Mapping) else dict(zip(example, spec, strict=False))
        for key, item in example.items():
            yield from _fixed_sizes(item, specs.get(key), f"{where}[{key!r}]")
    elif isinstance(example, list | tuple) and spec:
        for number, (item, item_spec) in enumerate(zip(example, spec, strict=False)):
            yield from _fixed_sizes(item, item_spec, f"{where}[{number}]")


@contextmanager
def refusing(what: str, where: str = "") -> Iterator[None]:
    """Turns any error of torch into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(what, where=where, why=str(error)[:2000]) from error


def read_with_torch(path: str) -> Any:
    """Reads an archive with torch, which unpickles its contents."""
    with refusing("torch cannot read the archive", path):
        return torch.export.load(path)


@cache
def _rules() -> Mapping[Any, Any]:
    """Returns torch's decompositions: those of torch.export if it has them, else the general
    ones."""
    return dict(decomposition_table) | dict(torch.export.default_decompositions().items())


def has_rule(operator: Any) -> bool:
    """True if torch can decompose an operator; operators of TorchScript alone, like `aten.save`,
    have no rule."""
    if operator is None or operator in _rules():
        return operator is not None
    name, implicit = operator.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    exists = torch._C._dispatch_has_kernel(name)
    return bool(exists and implicit(name, "CompositeImplicitAutograd"))


def decomposed(program: Any) -> Any:
    """Returns the program without views and in-place updates.

    Operators that the table lacks are decomposed by torch's rules, as far as these go.
    """
    rules = {t: rule for t, rule in _rules().items() if not has_converter(str(t))}
    with refusing("torch cannot decompose the program"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from torch's own code
        return _remove_effect_tokens(_with_one_name_each(program).run_decompositions(rules))


def _with_one_name_each(program: Any) -> Any:
    """Returns the program, in which one input stands for each tensor that is several constants.

    A module that reaches a buffer in two ways, as Hugging Face's static caches do, is exported with
    two constants that share memory, and torch cannot decompose updates of one of them.
    """
    tensors, constants = ChainMap(program.constants, program.state_dict), dict(program.constants)
    firsts: dict[Any, str] = {}
    replacements: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        tensor, name = tensors.get(spec.target), spec.arg.name
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            memory = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            if firsts.setdefault(memory, name) != name and spec.target in constants:
                replacements[name] = firsts[memory]
                constants[spec.target] = tensor.clone()
    if not replacements:
        return program
    module = deepcopy(program.graph_module)
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    nodes = dict(zip_equal(names, module.graph.find_nodes(op="placeholder")))
    for name, node in nodes.items():
        node.name = node.target = name  # a copy of a name like `input` has a number
    for name, first in replacements.items():
        nodes[name].replace_all_uses_with(nodes[first])
    module.recompile()
    return program._update(module, program.graph_signature, constants=constants)


def described(program: Any) -> TorchProgram:
    """Returns an exported program in the form that the importer reads; constants share the
    program's memory."""
    signature = program.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    inputs = program.graph.find_nodes(op="placeholder")
    data = {n.name: program.constants.get(specs[n.name].target) for n in inputs}
    owned = {n.name: o for n in inputs if (o := _owner(specs[n.name], n, data[n.name])) is not None}
    by_target = {o.name: name for name, o in owned.items() if isinstance(o, Constant)}
    updates = [s for s in signature.output_specs if s.kind.name.endswith("_MUTATION")]
    names = {s.target: by_target.get(s.target, s.target) for s in updates}
    results = [(s.kind.name.lower(), s.target) for s in signature.output_specs[len(updates) :]]
    ranges, block = program.range_constraints, _block(program.graph)
    tensors = ChainMap(program.state_dict, program.constants)
    return TorchProgram(
        block,
        owned,
        tuple(names[s.target] for s in updates),
        all_names(results, _output_names(program), [n.name for n in inputs]),
        {str(symbol): (_end(r.lower), _end(r.upper)) for symbol, r in ranges.items()},
        _symbol_names(inputs),
        tuple(getattr(program, "_guards_code", ())),
        {str(size): size.node.hint for size in _symbolic_sizes(inputs)},
        lambda name: contents(tensors[name]),
        trusted=True,
        arguments=_paths(program.call_spec.in_spec),
    )


def _symbolic_sizes(inputs: Iterable[Any]) -> list[torch.SymInt]:
    sizes = (s for n in inputs for s in getattr(n.meta.get("val"), "shape", ()))
    return [s for s in sizes if isinstance(s, torch.SymInt)]


def _symbol_names(inputs: Iterable[Any]) -> dict[str, str]:
    """Returns the author's names of symbols (`Dim`).

    torch stores these names with the sources of each symbol. If only multiples of a symbol are
    sizes, it stores them under the symbol's own name.
    """
    scopes = {id(s.node.shape_env): s.node.shape_env for s in _symbolic_sizes(inputs)}
    names: dict[str, str] = {}
    for scope in scopes.values():
        debug_names = getattr(scope, "source_name_to_debug_name", {})
        for symbol, sources in getattr(scope, "var_to_sources", {}).items():
            for name in (s.name() if callable(s.name) else s.name for s in sources):
                if (called := debug_names.get(name, name)).isidentifier():
                    names.setdefault(str(symbol), called)
    return names


# ---- inputs, constants, results ------------------------------------------------------------------


def _owner(spec: Any, node: Any, constant: Any) -> Constant | Fixed | None:
    kind = spec.kind.name
    if kind == "CUSTOM_OBJ" and (groups := _groups(constant)) is not None:
        return Fixed(groups)
    if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
        return Constant(spec.target)
    if kind != "USER_INPUT":
        raise UserError(f"inputs of kind {kind} are not supported", where=f"input {node.name}")
    meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor):
        return None
    value = getattr(spec.arg, "value", meta)
    if value is None or isinstance(value, int | float | str):
        return Fixed(value)
    return None


def contents(tensor: Any) -> tuple[Array, DType]:
    """Returns a tensor's elements and dtype; they share the tensor's memory where NumPy has the
    type. Complex elements become pairs of real ones, on a last axis.

    Raises `UserError` for a tensor without contents here (fake, sparse, quantised).
    """
    name = _name(tensor.dtype)
    dtype = part_type(name)
    if type(tensor).__name__ == "FakeTensor" or tensor.layout is not torch.strided:
        raise UserError(f"a {tensor.layout} tensor has no contents to compile")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dtype is BF16:
        plain = plain.float()
    if name in PARTS:
        plain = torch.view_as_real(plain)
    array: Array = plain.numpy()
    return array, dtype


def _output_names(program: Any) -> tuple[str, ...]:
    spec = program.call_spec.out_spec
    paths = _paths(spec)
    if len(paths) != spec.num_leaves:
        return tuple(f"output_{n}" for n in range(spec.num_leaves))
    return result_names(paths)


def _paths(spec: Any) -> tuple[tuple[Any, ...], ...]:
    """Returns the path to each leaf of a tree specification.

    The result is empty if the tree holds opaque objects, whose leaves are unknown.
    """
    numbered = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    leaves, _ = pytree.tree_flatten_with_path(numbered)
    if len(leaves) != spec.num_leaves:
        return ()
    return tuple(tuple(map(_step, path)) for path, _ in leaves)


def _step(key: Any) -> Any:
    """Returns a step of a path: a key, the name of an attribute, or a number."""
    candidates = (getattr(key, kind, None) for kind in ("key", "name", "idx"))
    return next((value for value in candidates if value is not None), key)


def _end(value: Any) -> int | None:
    return int(value) if getattr(value, "is_Integer", False) else None


# ---- groups of ranks -----------------------------------------------------------------------------


def _groups(constant: Any) -> Any:
    """Returns a group of ranks, or the groups along each dimension of a mesh; None for other
    objects."""
    if not dist.is_available():
        return None
    if isinstance(constant, dist.ProcessGroup):
        return _ranks(constant, [dist.get_process_group_ranks(constant)])
    if not isinstance(constant, dist.DeviceMesh):
        return None
    # Axis 0 counts meshes of this shape, this mesh among them, which together contain every rank.
    # The axes of a mesh follow.
    meshes = constant._layout.remap_to_tensor(constant._rank_map)
    lines = (meshes.movedim(n + 1, -1).reshape(-1, constant.size(n)) for n in range(constant.ndim))
    lists = (map(sorted, line.tolist()) for line in lines)  # torch sorts a group's ranks
    return tuple(_ranks(constant.get_group(n), [*ranks]) for n, ranks in enumerate(lists))


def _ranks(group: Any, lists: list[list[int]]) -> Ranks:
    if lists == [[*range(dist.get_world_size())]]:
        return Ranks("")
    return Ranks(group.group_desc, tuple(map(tuple, lists)))


def _named_group(name: str) -> Ranks:
    """Returns the group of ranks with this name.

    It has members only if torch.distributed has a group of this name in this process.
    """
    if dist.is_available() and dist.is_initialized():
        with suppress(ValueError, RuntimeError):
            group: Ranks = _groups(dist.distributed_c10d._resolve_process_group(name))
            return group
    return Ranks(name)


# ---- calls ---------------------------------------------------------------------------------------


def _block(graph: Any) -> CallBlock:
    inputs = tuple((n.name, _known(n.meta.get("val"))) for n in graph.find_nodes(op="placeholder"))
    calls = tuple(_call(n) for n in graph.nodes if n.op == "call_function")
    (output,) = graph.find_nodes(op="output")
    returned = output.args[0]
    listed = returned if isinstance(returned, list | tuple) else [returned]
    return CallBlock(inputs, calls, tuple(map(_argument, listed)))


def _call(node: Any) -> Call:
    bound = _bound(node.target, node.args, node.kwargs)
    arguments = {name: _argument(value) for name, value in bound.items()}
    if isinstance(group := arguments.get("group_name"), str):
        arguments["group_name"] = _named_group(group)
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed([entry[0] for entry in stack.values()]), "")
    return Call(
        node.name,
        _target(node.target),
        arguments,
        _known(node.meta.get("val")),
        path.removeprefix("L['self']").lstrip("."),
        frozenset(user.args[1] for user in node.users if _target(user.target) == GETITEM),
    )


def _target(target: Any) -> str:
    """Returns the operator's name, of torch's library or of the Python function."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _bound(target: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the call's arguments by name; an absent argument has its default."""
    bound: dict[str, Any] = {}
    if isinstance(target, torch._ops.OpOverload):
        declared = target._schema.arguments
        bound.update((a.name, a.default_value) for a in declared)
        bound.update(zip((a.name for a in declared), positional, strict=False))
    else:
        bound.update((str(number), value) for number, value in enumerate(positional))
    return {**bound, **named}


def _argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        attr = getattr(value.graph.owning_module, value.target) if value.op == "get_attr" else None
        return _block(attr.graph) if isinstance(attr, torch.fx.GraphModule) else Ref(value.name)
    if isinstance(value, list | tuple):
        return [_argument(item) for item in value]
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    return ElementType(_name(value)) if isinstance(value, torch.dtype) else Opaque(str(value))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _known(value: Any) -> Known:
    if isinstance(value, torch.Tensor):
        described = Tensor(_name(value.dtype), tuple(map(_size, value.shape)))
        if value.layout is not torch.strided:
            return described
        strides, offset = tuple(map(_size, value.stride())), _size(value.storage_offset())
        return replace(described, strides=strides, offset=offset)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        kind = type(value).__name__.removeprefix("Sym").lower()
        return Number(kind, _formula(value.node.expr))
    if isinstance(value, list | tuple):
        return tuple(map(_known, value))
    return value if isinstance(value, bool | int | float) else None


def _size(size: Any) -> Size:
    size_or_formula: Size = size if isinstance(size, int) else _formula(size.node.expr)
    return size_or_formula


def _formula(expression: Any) -> Any:
    """Returns a sympy expression as a `Formula` or number."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Rational:
        return Formula("Rational", (int(expression.p), int(expression.q)))
    if expression.is_Number:
        return float(expression)
    if expression.is_Symbol:
        return Formula("Symbol", (str(expression),))
    if expression.is_Boolean and expression in (True, False):
        return bool(expression)
    return Formula(type(expression).__name__, tuple(map(_formula, expression.args)))
