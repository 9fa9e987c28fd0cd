"""Reads the JSON of an archive as a `TorchProgram`, strictly by the schema of `torch.export.save`.

Everything is data: operators are names, which the table of converters has or lacks.  The readers
here raise ValueError where the JSON differs from the schema.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from tcc.bounded import parse_json
from tcc.frontends.torch.calls import (
    Call,
    CallBlock,
    Constant,
    ElementType,
    Fixed,
    Known,
    Number,
    Opaque,
    Ref,
    Tensor,
    TorchProgram,
)
from tcc.frontends.torch.defaults import DEFAULTS
from tcc.frontends.torch.formulas import read_formula
from tcc.frontends.torch.outputs import all_names, result_names
from tcc.ir.op import Array
from tcc.ir.types import DType
from tcc.zipped import zip_equal

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9.]{0,400}")
_TARGET = re.compile(r"[A-Za-z_][A-Za-z_0-9.]{0,200}")
_REALS = ("Infinity", "-Infinity", "NaN")
_DEEPEST = 32
# Torch's names of element types by the schema's numbers; `-` is a number without a type.
_SCALAR_TYPES = (
    "- uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
    "bfloat16 - - - - - - - - - - - - - - uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
    "float8_e5m2fnuz float8_e8m0fnu uint32 uint64"
).split()


def program_of(content: Any, contents: Callable[[str], tuple[Array, DType]]) -> TorchProgram:
    """Returns the program that the JSON of an archive describes."""
    module = member(content, "graph_module", dict)
    signature = member(module, "signature", dict)
    specs = member(signature, "input_specs", list)
    owned, updates = _owned(specs), []
    reader = _Reader(0)
    block = reader.block(member(module, "graph", dict), list(map(_constant_input, specs)))
    names = {o.name: name for name, o in owned.items() if isinstance(o, Constant)}
    fixed = [_union(spec) for spec in member(signature, "output_specs", list)]
    if len(fixed) != len(block.outputs) or len(specs) != len(block.inputs):
        raise ValueError("the program and its signature differ in their inputs or results")
    results = []
    for kind, spec in fixed:
        if kind.endswith("_mutation"):
            target = _target(spec)
            updates.append(names.get(target, target))
            if updates[-1] not in dict(block.inputs):
                raise ValueError(f"{target[:80]!r}, which is updated, is no input")
        else:
            results.append((kind, _target(spec) if kind.startswith("gradient_to_") else ""))
    returned = sum(not kind.startswith("gradient_to_") for kind, _ in results)
    ranges = member(content, "range_constraints", dict)
    return TorchProgram(
        block,
        owned,
        tuple(updates),
        all_names(results, _output_names(module, returned), [name for name, _ in block.inputs]),
        {name: _range(ends) for name, ends in ranges.items()},
        {},  # archives lack the author's names of sizes
        _guards(content),
        reader.hints,
        contents,
        trusted=False,
        arguments=tuple(_paths(module, "in_spec") or ()),
    )


def _guards(content: Any) -> tuple[str, ...]:
    """Returns the conditions of the program; programs of older torch have none."""
    conditions = member(content, "guards_code", list) if "guards_code" in content else []
    if not all(isinstance(text, str) for text in conditions):
        raise ValueError("a condition is no text")
    return tuple(conditions)


# ---- pieces of JSON ------------------------------------------------------------------------------


def member(item: Any, name: str, kind: type) -> Any:
    """Returns a field of an item; raises ValueError unless it is of the kind `kind`."""
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"'{name}' is missing, or of another kind than is due")
    return value


def numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Returns sizes that must be constant numbers."""
    return tuple(member(size, "as_int", int) for size in sizes)


def scalar_type(number: Any) -> str:
    """Returns torch's name of the element type with this number in the schema."""
    names = _SCALAR_TYPES[number:][:1] if isinstance(number, int) and number > 0 else ["-"]
    if names in ([], ["-"]):
        raise ValueError(f"{number!r} is no element type")
    return names[0]


def _union(value: Any) -> tuple[str, Any]:
    """Returns the kind and the value of a tagged union."""
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("a value is not of one kind")
    ((kind, content),) = value.items()
    return kind, content


def _name(item: Any, key: str = "name") -> str:
    name: str = member(item, key, str)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name")
    return name


def _name_of(kind: str, value: Any) -> str | None:
    """Returns the name of a tensor or of a number computed from sizes; None for other kinds."""
    if kind == "as_tensor":
        return _name(value)
    return _name(value, "as_name") if kind.startswith("as_sym_") else None


def _range(ends: Any) -> tuple[int | None, int | None]:
    low, high = (ends.get(k) if isinstance(ends, dict) else "" for k in ("min_val", "max_val"))
    if isinstance(low, int | None) and isinstance(high, int | None):
        return low, high
    raise ValueError("the range of a symbol is wrong")


def _owned(specs: Sequence[Any]) -> dict[str, Constant | Fixed]:
    """Returns the inputs that the caller does not pass, by name."""
    owned: dict[str, Constant | Fixed] = {}
    for spec in specs:
        kind, content = _union(spec)
        match kind:
            case "user_input":
                continue
            case "parameter" | "buffer" | "tensor_constant":
                name = member(content, f"{kind}_name", str)
                owned[_name(member(content, "arg", dict))] = Constant(name)
            case "constant_input":
                owned[_name(content)] = Fixed(_literal(*_union(member(content, "value", dict))))
            case _:
                raise ValueError(f"inputs of kind {kind[:80]} are not supported")
    return owned


def _constant_input(spec: Any) -> str | None:
    """Returns the name of a constant input, which the graph's own list lacks; else None."""
    kind, content = _union(spec)
    return _name(content) if kind == "constant_input" else None


def _target(spec: Any) -> str:
    """Returns the name of the input that a result updates, or whose gradient the result is."""
    names = [v for k, v in spec.items() if k.endswith("_name")] if isinstance(spec, dict) else []
    if len(names) != 1 or not isinstance(names[0], str):
        raise ValueError("a result is the new value, or the gradient, of nothing")
    return names[0]


def _literal(kind: str, value: Any) -> Any:
    """Returns a number, a text or None; NaN and infinities, which JSON lacks, are texts."""
    if kind == "as_none":
        return None
    if kind == "as_float" and isinstance(value, str) and value in _REALS:
        return float(value)
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"a value of kind {kind[:80]} is none")
    return value


# ---- names of results ----------------------------------------------------------------------------


def _output_names(module: Any, count: int) -> tuple[str, ...]:
    """Returns the names of results, from their paths in the model's return value."""
    paths = _paths(module, "out_spec")
    if paths is None:
        return tuple(f"output_{n}" for n in range(count))
    if len(paths) != count:
        raise ValueError(f"the program returns {count} results, its description {len(paths)}")
    return result_names(paths)


def _paths(module: Any, name: str) -> Sequence[tuple[Any, ...]] | None:
    """Returns the path to each leaf of a tree specification; None if the program has no
    specification."""
    calls = member(module, "module_call_graph", list)
    signature = next((c.get("signature") for c in calls if member(c, "fqn", str) == ""), None)
    if signature is None:
        return None
    spec = parse_json(member(signature, name, str).encode())
    fields = module.get("treespec_namedtuple_fields", {})
    return _leaves(spec[1], (), fields) if isinstance(spec, list) and len(spec) == 2 else []


def _leaves(spec: Any, path: tuple[Any, ...], fields: Any) -> Sequence[tuple[Any, ...]]:
    if len(path) > _DEEPEST:
        raise ValueError("results are nested too deeply")
    children, kind = member(spec, "children_spec", list), spec.get("type")
    if kind is None:
        return [path]
    keys = _keys(str(kind), spec.get("context"), len(children), fields)
    return [
        leaf
        for key, child in zip_equal(keys, children)
        for leaf in _leaves(child, (*path, key), fields)
    ]


def _keys(kind: str, context: Any, count: int, fields: Any) -> Sequence[Any]:
    """Returns the keys of a container's entries.

    They are field names or dictionary keys if the container has them, else numbers.
    """
    named = fields.get(kind) if isinstance(fields, dict) else None
    keys = named.get("field_names") if isinstance(named, dict) else None
    if keys is None and isinstance(context, str):
        keys = parse_json(context.encode())
    if (
        isinstance(keys, list)
        and len(keys) == count
        and all(isinstance(k, str | int) for k in keys)
    ):
        return keys
    return range(count)


# ---- blocks and calls ----------------------------------------------------------------------------


class _Reader:
    """Reads one block; `depth` counts the blocks that contain it."""

    def __init__(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("blocks are nested too deeply")
        self._depth = depth
        self._known: dict[str, Known] = {}
        self._defined: set[str] = set()
        self._read: set[str] = set()
        self.hints: dict[str, int] = {}

    def block(self, graph: Any, names: Sequence[str | None] = ()) -> CallBlock:
        """Returns the block that a graph describes.

        `names` has the name of each constant input, and None for each other input.
        """
        self._learn(graph)
        inputs = []
        for number, entry in enumerate(member(graph, "inputs", list)):
            constant_name = names[number] if number < len(names) else None
            inputs.append(self._input(entry, constant_name or f"input_{number}"))
        parts = [self._node(node) for node in member(graph, "nodes", list)]
        outputs = tuple(self._argument(value) for value in member(graph, "outputs", list))
        calls = tuple(call for part in parts for call in self._calls(*part))
        return CallBlock(tuple(inputs), calls, outputs)

    def _learn(self, graph: Any) -> None:
        """Records the graph's descriptions of its values."""
        for name, meta in member(graph, "tensor_values", dict).items():
            size_lists = member(meta, "sizes", list), member(meta, "strides", list)
            sizes, strides = (tuple(map(_size, part)) for part in size_lists)
            hints = zip_equal((*sizes, *strides), map(_hint, chain(*size_lists)))
            self.hints.update((str(size), hint) for size, hint in hints if hint is not None)
            offset = _size(member(meta, "storage_offset", dict))
            self._known[name] = Tensor(scalar_type(meta.get("dtype")), sizes, strides, offset)
        for kind in ("int", "float", "bool"):
            for name, value in member(graph, f"sym_{kind}_values", dict).items():
                result = _expression(value)
                symbolic = not isinstance(result, bool | int | float)
                self._known[name] = Number(kind, result) if symbolic else result

    def _input(self, argument: Any, unnamed: str) -> tuple[str, Known]:
        kind, value = _union(argument)
        name = _name_of(kind, value)
        if name is None:
            return self._define(unnamed), _literal(kind, value)
        return self._define(name), self._known_of(name)

    def _define(self, name: str) -> str:
        if name in self._defined:
            raise ValueError(f"'{name}' is defined twice")
        self._defined.add(name)
        return name

    def _known_of(self, name: str) -> Known:
        if name not in self._known:
            raise ValueError(f"nothing is said of '{name}'")
        return self._known[name]

    def _ref(self, item: Any, key: str = "name") -> Ref:
        name = _name(item, key)
        if name not in self._defined:
            raise ValueError(f"'{name}' is read before it is computed")
        self._read.add(name)
        return Ref(name)

    # ---- arguments

    def _argument(self, argument: Any) -> Any:
        return self._value(*_union(argument))

    def _value(self, kind: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(kind, item) for item in value]
        match kind.removesuffix("s"):
            case "as_tensor" | "as_nested_tensor":
                return self._ref(value)
            case "as_optional_tensor":
                return self._argument(value)
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                inner, content = _union(value)
                named = inner == "as_name"
                return self._ref(value, "as_name") if named else _literal(inner, content)
            case "as_scalar_type":
                return ElementType(scalar_type(value))
            case "as_graph":
                return _Reader(self._depth + 1).block(member(value, "graph", dict))
            case "as_complex":
                return complex(*(member(value, part, float) for part in ("real", "imag")))
        if isinstance(value, dict) or kind in ("as_memory_format", "as_layout", "as_operator"):
            return Opaque(f"{kind.removeprefix('as_')} {str(value)[:80]}")
        return _literal("as_float" if "float" in kind else kind, value)

    # ---- calls

    def _node(self, node: Any) -> tuple[Call, list[str | None]]:
        """Returns a call, and the names of its results if it has several.

        The call's `used_results` is still empty.
        """
        target = member(node, "target", str).removeprefix("torch.ops.")
        if not _TARGET.fullmatch(target):
            raise ValueError(f"{target[:80]!r} is no operator")
        arguments: dict[str, Any] = {}
        for number, entry in enumerate(member(node, "inputs", list)):
            name = member(entry, "name", str) or str(number)
            arguments[name] = self._argument(entry.get("arg"))
        for name, value in DEFAULTS.get(target, {}).items():
            arguments.setdefault(name, value)
        names, single = self._results(node)
        name = names[0] if single else node.get("name")
        if not single and (not isinstance(name, str) or name in self._defined):
            name = f"results_of_{'_'.join(filter(None, names)) or len(self._defined)}"
        metas = [None if n is None else self._known_of(n) for n in names]
        result = metas[0] if single else tuple(metas) if metas else None
        call = Call(self._define(str(name)), target, arguments, result, _path(node.get("metadata")))
        return call, [] if single else [n if n is None else self._define(n) for n in names]

    def _results(self, node: Any) -> tuple[list[str | None], bool]:
        """Returns the names of a call's results, None for absent results.

        The second result is True if the call returns one value that is not in a list.
        """
        outputs = [_union(output) for output in member(node, "outputs", list)]
        if len(outputs) == 1 and outputs[0][0] == "as_tensors":
            tensors = member(dict(outputs), "as_tensors", list)
            return [_name(tensor) for tensor in tensors], False
        names = [self._result(kind, value) for kind, value in outputs]
        in_list = node.get("is_hop_single_tensor_return") is False
        return names, len(names) == 1 and not in_list

    def _result(self, kind: str, value: Any) -> str | None:
        name = _name_of(kind, value)
        if name is None and kind != "as_none":
            raise ValueError(f"results of kind {kind[:80]} are not supported")
        return name

    def _calls(self, call: Call, names: Sequence[str | None]) -> list[Call]:
        """Returns a call, and then for each result that something reads a call that extracts it."""
        results_read = {n: name for n, name in enumerate(names) if name in self._read and name}
        items = [
            Call(name, "_operator.getitem", {"a": Ref(call.name), "b": n}, self._known_of(name))
            for n, name in results_read.items()
        ]
        return [replace(call, used_results=frozenset(results_read)), *items]


def _size(size: Any) -> Any:
    size_or_formula = _expression(size)
    if isinstance(size_or_formula, float | bool) or (
        isinstance(size_or_formula, int) and size_or_formula < 0
    ):
        raise ValueError(f"{size_or_formula} is no size")
    return size_or_formula


def _hint(size: Any) -> int | None:
    """Returns the value that a formula had when torch traced the program, if known."""
    _, content = _union(size)
    hint = content.get("hint") if isinstance(content, dict) else None
    value = hint.get("as_int") if isinstance(hint, dict) else None
    return value if type(value) is int else None


def _expression(value: Any) -> Any:
    """Returns a number, or its formula."""
    kind, content = _union(value)
    return (
        read_formula(member(content, "expr_str", str))
        if kind == "as_expr"
        else _literal(kind, content)
    )


def _path(metadata: Any) -> str:
    """Returns the path of the module that made a call."""
    stack = metadata.get("nn_module_stack") if isinstance(metadata, dict) else None
    if not isinstance(stack, str):
        return ""
    steps = stack.rpartition(";")[2].split(",")
    path = steps[1] if len(steps) > 1 else ""
    return path[:200] if _NAME.fullmatch(path) else ""
