"""Runs graph passes in order: verified, dumped and timed.

    (fold_constants, canonicalize, ...)      pass 1, verify, dump ; pass 2, verify, dump ; ...

A pass is a function from graph to graph that returns the graph it was given if it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.ir.graph import Graph
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph


class PassKind(Enum):
    """What becomes of a pass's result."""

    NORMALISING = "normalising"  # applied at once
    PROPOSING = "proposing"  # one alternative to what it replaces; taken, for there is no other yet


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of a pipeline; it runs at `level` of -O and above."""

    name: str
    function: Callable[[Graph], Graph]
    kind: PassKind = PassKind.NORMALISING
    level: int = 0


def run_passes(
    graph: Graph, passes: Sequence[Pass], level: int, trace: Trace, *, verify: bool = False
) -> Graph:
    """The graph after every pass of `level` or below.

    Each pass is a stage of `trace`, and a graph that it changed is dumped there.  With `verify`
    every changed graph is verified; raises `InternalError` with the name of the pass that broke it.
    """
    for step in passes:
        if step.level > level:
            continue
        with trace.stage(step.name):
            changed = step.function(graph)
        if changed is graph:
            continue
        graph = changed
        if verify:
            _verify(graph, step)
        if trace.dumping:
            _dump(graph, step, trace)
    return graph


def _verify(graph: Graph, step: Pass) -> None:
    try:
        verify_graph(graph)
    except InternalError as error:
        error.add_note(f"after pass {step.name}")
        raise


def _dump(graph: Graph, step: Pass, trace: Trace) -> None:
    trace.dump(step.name, lambda: graph_text(graph))
