"""The names and pending nodes of an ONNX graph, and the state of one import of an ONNX model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx
from tcc.budgets import BUDGETS, Budgets
from tcc.errors import UserError
from tcc.frontends.onnx.tensors import TensorReader
from tcc.frontends.operand import Operand
from tcc.frontends.place import placed
from tcc.frontends.scope import ImportSession, Scope
from tcc.ir.index import Index


@dataclass(kw_only=True)
class OnnxSession(ImportSession):
    """State of one import.

    `run_nodes` imports a scope's pending nodes (set by the importer).  `producer` is the program
    that wrote the model, as the model says.
    """

    tensors: TensorReader
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
    run_nodes: Callable[[OnnxScope], None]
    budgets: Budgets = BUDGETS
    producer: str = ""
    nodes: int = 0
    depth: int = 0
    calls: tuple[tuple[str, str, str], ...] = ()
    until: float = field(init=False)  # the import's deadline, in seconds of `time.monotonic`

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.budgets.import_seconds


@dataclass(eq=False)
class OnnxScope(Scope):
    """The names of a graph, body or function.

    A body also sees the names of its `parent`. `pending` are the nodes not imported yet. `ends`
    maps the graph's results to their declared ranks. `ways` has an entry for each enclosing branch:
    the two sizes that its condition compares, if any, and True if they are equal in the branch.
    """

    session: OnnxSession
    parent: OnnxScope | None = None
    opsets: Mapping[str, int] = field(default_factory=dict)
    names: dict[str, Operand | None] = field(default_factory=dict)
    pending: deque[onnx.NodeProto] = field(default_factory=deque)
    ends: Mapping[str, int | None] = field(default_factory=dict)
    ways: tuple[tuple[tuple[Index, Index] | None, bool], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parent:
            self.opsets, self.ways = self.parent.opsets, self.parent.ways

    def find(self, name: str) -> Operand | None:
        """Returns the operand of an ONNX name; None for '' and for absent optional function inputs.

        Raises KeyError for an undefined name.
        """
        if not name:
            return None
        scope: OnnxScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise KeyError(name)

    def result(self, name: str) -> Operand | None:
        """Returns the operand of a graph's result; None where nothing defines it."""
        try:
            return self.find(name)
        except KeyError:
            return None

    def define(self, name: str, operand: Operand | None) -> None:
        """Binds a name to its operand; raises `UserError` if it is bound already."""
        if not name:
            return
        if name in self.names:
            raise UserError(f"'{name}' is defined twice")
        self.names[name] = operand

    def define_initializers(
        self, graph: onnx.GraphProto, weights: Mapping[int, memoryview] | None = None
    ) -> None:
        """Defines the graph's constants.

        Dense ones become views, and sparse ones arrays with all elements. `weights` maps an
        initialiser's number to raw data outside of the protobuf. A name that is an input already
        keeps the input as its value.
        """
        raw, inputs, tensors = weights or {}, set(self.names), self.session.tensors
        readers = [
            (tensor.name, partial(tensors.array, tensor, raw=raw.get(number)))
            for number, tensor in enumerate(graph.initializer)
        ]
        readers += [(s.values.name, partial(tensors.dense, s)) for s in graph.sparse_initializer]
        for name, reader in readers:
            if name not in inputs:
                with placed(f"{self.path}initializer {name[:200]}"):
                    self.define(name, self.constant(*reader(), name))
