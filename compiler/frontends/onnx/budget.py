"""Counts the nodes of a model with inlined functions, before inlining them.

A chain of n functions that each call the next one twice makes 2^n nodes: such files are refused at
once.
"""

from collections.abc import Iterable, Mapping

from onnx import FunctionProto, NodeProto
from tcc.budgets import Budgets
from tcc.frontends.onnx.functions import FunctionKey, function_key
from tcc.frontends.onnx.schema import walk

_Functions = Mapping[FunctionKey, FunctionProto]


def check_expansion(nodes: Iterable[NodeProto], functions: _Functions, budgets: Budgets) -> None:
    """Raises `UserError` where `nodes`, with functions in place of their calls, exceed the budget.

    A recursive call counts once; the import refuses it.
    """
    counts: dict[FunctionKey, int] = {}
    for key in functions:
        _count(key, functions, counts)
    count = sum(_weight(node, counts) for node in walk(nodes))
    if count > budgets.nodes:
        raise budgets.over("nodes", why=f"it expands to {count}")


def _weight(node: NodeProto, counts: Mapping[FunctionKey, int]) -> int:
    return counts.get(function_key(node), 1)


def _count(root: FunctionKey, functions: _Functions, counts: dict[FunctionKey, int]) -> None:
    """Adds the number of nodes of `root`, and of all functions that it calls, to `counts`.

    An explicit stack takes the place of recursion.
    """
    pending = [root]
    entered: set[FunctionKey] = set()
    while pending:
        key = pending[-1]
        if key in counts:
            pending.pop()
            continue
        nodes = list(walk(functions[key].node))
        called = {function_key(n) for n in nodes} & functions.keys() - counts.keys() - entered
        if key not in entered and called:
            entered.add(key)
            pending += sorted(called)
            continue
        counts[key] = 1 + sum(_weight(node, counts) for node in nodes)
        pending.pop()
