"""Calls with nested arguments: lists, tuples and dictionaries of arrays, as the model was exported.

The manifest's `call` lists the leaves of the arguments in order, as pairs of a path and a leaf. A
path begins with 0 and a position, or with 1 and a keyword. Keys, positions and names of attributes
follow. A leaf is an input, by its name, or a value that the export fixed:

    [[[0, 0, "left"], {"input": "pair_left"}], [[1, "scale"], {"fixed": null}]]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Leaf = dict[str, Any]
Tree = dict[Any, Any]  # maps a key to a tree, or to a tuple that holds a leaf


class MismatchError(ValueError):
    """Raised if the arguments are nested in another way than in the export."""


class CallForm:
    """The nesting of a model's arguments, from the manifest's `call`."""

    def __init__(self, leaves: Sequence[tuple[Sequence[Any], Leaf]]) -> None:
        self._tree: Tree = {0: {}, 1: {}}
        for path, leaf in leaves:
            node = self._tree
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = (leaf,)

    def named(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arrays by input name.

        A keyword that is no keyword of the export is read as the name of an input. Raises
        MismatchError if the arguments are nested in another way than in the export.
        """
        positions, keyword_nodes = self._tree[0], self._tree[1]
        for name, node in keyword_nodes.items():
            if name not in keywords and not _is_fixed(node):
                raise MismatchError(f"the argument {name} is missing")
        remaining = dict(keywords)
        unfilled = [*positions.values()][len(arrays) :]
        trailing = [remaining.pop(name) for name in map(_input, unfilled) if name in remaining]
        inputs = dict(_matched(positions, (*arrays, *trailing), "arguments"))
        for name in keyword_nodes.keys() & remaining.keys():
            inputs.update(_matched(keyword_nodes[name], remaining.pop(name), name))
        return inputs | remaining

    def __str__(self) -> str:
        positions = (_text(node) for node in self._tree[0].values())
        keywords = (f"{name}={_text(node)}" for name, node in self._tree[1].items())
        return f"call module({', '.join((*positions, *keywords))}), or give each array by itself"


def by_name(
    form: CallForm | None,
    names: Sequence[str],
    arrays: Sequence[Any],
    keywords: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the arrays of a call by input name; `names` are the inputs in order.

    Arguments are nested as in the export, or there is one for each input. Raises MismatchError for
    any other nesting.
    """
    why = f"there are {len(arrays)} arrays for {len(names)} inputs"
    if form is not None:
        try:
            return form.named(arrays, keywords)
        except MismatchError as failure:
            why = str(failure)
    duplicates = [name for name in names[: len(arrays)] if name in keywords]
    if duplicates:
        raise MismatchError(f"'{duplicates[0]}' was given both by position and by name")
    are_inputs = keywords.keys() <= set(names)
    if len(arrays) > len(names) or (
        form and not (are_inputs and len(arrays) + len(keywords) == len(names))
    ):
        raise MismatchError(why)
    return {**dict(zip(names, arrays, strict=False)), **keywords}


def _matched(node: Any, value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yields (input name, array) for each input in `value`, which must be nested like `node`.

    `where` names the value in errors. Raises MismatchError.
    """
    if isinstance(node, tuple):
        (leaf,) = node
        if "input" in leaf:
            yield leaf["input"], value
        elif not _same(value, leaf["fixed"]):
            raise MismatchError(f"{where} is fixed to {leaf['fixed']!r}; it was given {value!r}")
        return
    for key, part in _parts(node, value, where):
        yield from _matched(node[key], part, f"{where}[{key!r}]")


def _parts(node: Tree, value: Any, where: str) -> Iterator[tuple[Any, Any]]:
    """Yields (key, child) for each child of a container; the keys are those of `node`.

    `where` names the container in errors.
    """
    if isinstance(value, Mapping):
        if value.keys() != node.keys():
            raise MismatchError(f"{where} has the keys {_listed(value)}, due are {_listed(node)}")
        yield from ((key, value[key]) for key in node)
    elif isinstance(value, list | tuple):
        if len(value) != len(node):
            raise MismatchError(f"{where} has {len(value)} entries, due are {len(node)}")
        yield from zip(node, value, strict=True)
    elif all(isinstance(key, str) and hasattr(value, key) for key in node):
        yield from ((key, getattr(value, key)) for key in node)
    else:
        kind = "list" if all(isinstance(key, int) for key in node) else "dict"
        raise MismatchError(f"{where} is a {type(value).__name__}, due is a {kind} of {len(node)}")


def _input(node: Any) -> str:
    """Returns the name of the input if a node is an input, else ""."""
    return str(node[0].get("input", "")) if isinstance(node, tuple) else ""


def _is_fixed(node: Any) -> bool:
    """True if a node holds no input, only values that the export fixed."""
    if isinstance(node, tuple):
        return "input" not in node[0]
    return all(map(_is_fixed, node.values()))


def _same(value: Any, fixed: Any) -> bool:
    return type(value) is type(fixed) and bool(value == fixed)


def _listed(keys: Any) -> str:
    return ", ".join(map(repr, keys)) or "none"


def _text(node: Any) -> str:
    if isinstance(node, tuple):
        (leaf,) = node
        return str(leaf["input"]) if "input" in leaf else repr(leaf["fixed"])
    if all(isinstance(key, int) for key in node):
        return f"[{', '.join(map(_text, node.values()))}]"
    return f"{{{', '.join(f'{key!r}: {_text(part)}' for key, part in node.items())}}}"
