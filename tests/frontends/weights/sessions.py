"""Runs of language models whose caches grow, by the graph evaluator or in compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph

Arrays = Mapping[str, Any]
Run = Callable[[Arrays], Arrays]


class Session:
    """Runs a language model on successive tokens.

    `run` takes and returns arrays by name. `shapes` has the shape of each cache without its first
    axis.
    """

    def __init__(
        self, run: Callable[[Arrays], Arrays], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self._run = run
        self._caches = {name: np.zeros((0, *shape), np.float32) for name, shape in shapes.items()}

    def run(self, tokens: Sequence[int], rows: Sequence[int] = (-1,)) -> Any:
        """Returns the logits of `rows` of the tokens, which follow the tokens of earlier runs."""
        caches = {
            name: np.concatenate([old, np.zeros((len(tokens), *old.shape[1:]), np.float32)])
            for name, old in self._caches.items()
        }
        feeds = {"tokens": np.array(tokens, np.int64), "rows": np.array(rows, np.int64)}
        results = self._run({**feeds, **caches})
        self._caches = {name: results.get(f"{name}.next", caches[name]) for name in caches}
        return results["logits"]


def evaluated(graph: Graph) -> Session:
    """Returns a session that uses the graph evaluator."""
    caches = {v.name: v.type.shape[1:] for v in graph.inputs if v.name.startswith("cache.")}
    shapes = {name: [int(dim.key) for dim in dims] for name, dims in caches.items()}
    return Session(lambda arrays: evaluate_graph(graph, arrays), shapes)


def compiled(module: Any) -> Session:
    """Returns a session that uses a compiled module."""
    shapes = {p.name: p.shape[1:] for p in module.inputs if p.name.startswith("cache.")}
    return Session(lambda arrays: module.run(dict(arrays)), shapes)
