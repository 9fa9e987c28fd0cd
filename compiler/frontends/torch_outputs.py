"""The end of an import: results under names that say where they lie in what the model returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tcc.errors import UserError
from tcc.frontends.onnx_outputs import rename
from tcc.frontends.onnx_scope import Operand, Scope
from tcc.frontends.torch_complex import Complex
from tcc.ir.graph import Graph, Value
from tcc.ir.index import Index
from tcc.ir.types import I64
from tcc.ops import OPS
from torch.utils import _pytree as pytree


def finish_program(
    scope: Scope, program: Any, results: Sequence[Any], inputs: Sequence[Operand]
) -> Graph:
    """The graph with the program's results as outputs; those that are None are left out.

    A result that is an input, a constant or an earlier result gets a copy of its own.
    """
    named = zip(output_names(program), results, strict=True)
    present = [(name, result) for name, result in named if result is not None]
    if not present:
        raise UserError("the program returns no tensor")
    taken: set[Value] = {o.made for o in inputs if o.made is not None}
    own = {value.name for value in taken}
    names: dict[Value, str] = {}
    for name, result in present:
        operand = _operand(scope, result, name)
        value = operand.value
        if value in taken or operand.array is not None:
            (value,) = scope.builder.add(
                OPS["identity"], [value], loc=f"output {name}", names=[name]
            )
        taken.add(value)
        names[value] = _free(name, own)
    return rename(scope.builder.finish(list(names)), names)


def _free(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    taken.add(free)
    return free


def _operand(scope: Scope, result: Any, name: str) -> Operand:
    if isinstance(result, Operand):
        return result
    if isinstance(result, Index):
        return scope.sizes([result], I64, scalar=True, name=name)
    if isinstance(result, bool | int | float):
        return scope.constant(result, name=name)
    if isinstance(result, Complex):
        raise UserError(
            f"output {name} is complex", hint="return its parts, as torch.view_as_real gives them"
        )
    raise UserError(f"output {name} is no tensor", why=f"it is {result!r}")


def output_names(program: Any) -> list[str]:
    """A name for each leaf of what the model returns: the keys on the way there, joined."""
    spec = program.call_spec.out_spec
    count = spec.num_leaves
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))
    paths = [path for path, _ in leaves]
    if len(paths) != count:
        return [f"output_{n}" for n in range(count)]
    if paths == [()]:
        return ["output"]
    return [_path_name(path) for path in paths]


def _step(key: Any) -> Any:
    """What a step of a path says: a key, the name of an attribute, or a number."""
    found = (getattr(key, kind, None) for kind in ("key", "name", "idx"))
    return next((value for value in found if value is not None), key)


def _path_name(path: Sequence[Any]) -> str:
    text = "_".join(str(_step(key)) for key in path)
    return text if text[:1].isalpha() else f"output_{text}"
