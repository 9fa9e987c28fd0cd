"""Builds the graph of a program: a node for each step and each value of a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx
from tcc.runtime.buffer_lives import STEPS, buffer_lives
from tcc.runtime.graph_values import ValueMemory, buffer_sizes, tensor_bytes
from tcc.runtime.host_program import (
    BUFFERS_READ,
    REGISTERS_READ,
    HostInstruction,
    HostProgram,
    TensorOperand,
    is_buffer,
)
from tcc.runtime.launch_needs import LaunchNeeds

_NODES = STEPS | {"copy"}
_KINDS = {"launch": "kernel"}
_STRENGTHS = ("write", "read", "update", "control")


class KernelGraphBuilder:
    """Adds the nodes and edges of a program to `graph`.

    `values` has the values of registers that are known, `needs` an item for each kernel. After
    `build`, `launches` has the instruction of each step, and `graph` these attributes:

    - steps and copies: `kind`, `step` (copies have none), `name`, `region`, `launches` in a run
      where constants alone decide them, and `optional` where another way of a branch has no step
    - values of buffers: `kind` "buffer", `buffer`, `version`, `label`, `place`, and `bytes` where
      the size is known; in the arena `offset`, and `first` and `last`, the steps of its life
    - edges: `kind` "read", "write", "update" or "control", `bytes` where they are known, and
      `arguments`: the positions among the buffers that the step accesses, counted from 0
    """

    def __init__(
        self,
        program: HostProgram,
        values: Mapping[int, int],
        needs: Sequence[LaunchNeeds],
    ) -> None:
        self.graph = networkx.DiGraph()
        self.launches: list[HostInstruction] = []
        self._program, self._values, self._needs = program, values, needs
        self._memory, self._sizes = ValueMemory(program), buffer_sizes(program, values)
        self._lives = buffer_lives(program)
        self._versions: dict[int, int] = {}
        self._allocated: dict[int, int] = {}
        self._copies = 0
        # The nodes that decide a register's value, and those that decide if an instruction runs.
        self._sources: dict[int, frozenset[str]] = {}
        self._control: frozenset[str] = frozenset()
        self._region: tuple[str, ...] = ()
        self._count: int | None = 1
        self._optional = False
        self._regions = 0

    def build(self) -> None:
        """Visits the program; raises ValueError if a launch does not fit its kernel."""
        self._body(self._program.body)

    def _body(self, body: Sequence[HostInstruction]) -> None:
        for instruction in body:
            self._instruction(instruction)

    def _instruction(self, instruction: HostInstruction) -> None:
        fields = instruction.fields
        match instruction.name:
            case name if name in _NODES:
                self._node(instruction)
            case "let":
                kinds = dict(instruction.operands)
                operands = (fields["a"], fields["b"]) if "operand" in kinds else ()
                self._define(fields["target"], self._sources_of(operands))
            case "read":
                self._define(fields["target"], frozenset(self._read(fields["buffer"], None)))
            case "plan":
                sources = self._sources_of(fields["sizes"])
                for register in (fields["end"], *fields["offsets"]):
                    self._define(register, sources)
            case "allocate":
                if not fields["keep"]:
                    self._memory.clear(fields["buffer"])
                size = self._values.get(fields["size"])
                if size is not None:
                    self._sizes[fields["buffer"]] = size
            case "view":
                offset = self._values.get(fields["offset"])
                self._memory.aim(fields["buffer"], fields["base"], offset)
            case "branch":
                self._branch(instruction)
            case "loop":
                self._loop(instruction)

    def _define(self, register: int, sources: frozenset[str]) -> None:
        if sources | self._sources.get(register, frozenset()):
            self._sources[register] = sources | self._sources.get(register, frozenset())

    def _sources_of(self, registers: Iterable[int]) -> frozenset[str]:
        empty: frozenset[str] = frozenset()
        return empty.union(*(self._sources.get(register, empty) for register in registers))

    # ---- bodies ---------------------------------------------------------------------------------

    def _branch(self, instruction: HostInstruction) -> None:
        control, before = self._condition(instruction), self._memory.copy()
        outer = self._control, self._region, self._count, self._optional
        number, self._regions = self._regions, self._regions + 1
        then, otherwise = instruction.fields["then"], instruction.fields["otherwise"]
        self._control |= control
        self._count = None
        self._region = (*outer[1], f"branch {number}: then")
        self._optional = outer[3] or not otherwise
        self._body(then)
        after_then, self._memory = self._memory, before
        self._region = (*outer[1], f"branch {number}: else")
        self._optional = outer[3] or not then
        self._body(otherwise)
        self._memory.join(after_then)
        self._control, self._region, self._count, self._optional = outer

    def _loop(self, instruction: HostInstruction) -> None:
        control = self._condition(instruction)
        outer = self._control, self._region, self._count
        number, self._regions = self._regions, self._regions + 1
        trips = self._values.get(instruction.fields["trips"])
        fixed = trips is not None and instruction.fields["condition"] < 0
        self._count = self._count * trips if fixed and self._count is not None and trips else None
        self._control |= control | self._sources_of((instruction.fields["trips"],))
        self._region = (*outer[1], f"loop {number}")
        before = self._memory.copy()
        self._body(instruction.fields["body"])
        if not trips:  # the loop may run no iteration
            self._memory.join(before)
        self._control, self._region, self._count = outer

    def _condition(self, instruction: HostInstruction) -> frozenset[str]:
        """Returns the nodes that decide if the bodies of an instruction run."""
        nodes: list[str] = []
        for kind, number in instruction.operands:
            if kind == "condition":
                nodes += self._read(number, None)
            elif kind == "when":
                nodes += self._sources_of((number,))
        return frozenset(nodes)

    # ---- steps ----------------------------------------------------------------------------------

    def _node(self, instruction: HostInstruction) -> None:
        kind = _KINDS.get(instruction.name, instruction.name)
        if instruction.name in STEPS:
            node, number = f"s{len(self.launches)}", len(self.launches)
            self.launches.append(instruction)
            self.graph.add_node(node, kind=kind, step=number)
        else:
            node = f"c{self._copies}"
            self._copies += 1
            self.graph.add_node(node, kind=kind, name="copy")
        attributes = self.graph.nodes[node]
        attributes["region"] = "/".join(self._region)
        if self._count is not None:
            attributes["launches"] = self._count
        if self._optional:
            attributes["optional"] = True
        registers = [number for kind, number in instruction.operands if kind in REGISTERS_READ]
        for source in sorted(self._control | self._sources_of(registers)):
            self._edge(source, node, "control", None, ())
        accesses = self._accesses(instruction)
        for argument, (buffer, is_written, size) in enumerate(accesses):
            if not is_written:
                for source in self._read(buffer, size):
                    self._edge(source, node, "read", self._known(buffer, size), (argument,))
        for argument, (buffer, is_written, size) in enumerate(accesses):
            if is_written:
                self._write(node, buffer, size, argument)
        for kind, register in instruction.operands:
            if kind == "defined":
                self._define(register, frozenset((node,)))

    def _accesses(self, instruction: HostInstruction) -> list[tuple[int, bool, int | None]]:
        """Returns (buffer, is_written, bytes) for each buffer that an instruction accesses."""
        fields = instruction.fields
        if instruction.name == "launch":
            needs = self._needs[fields["kernel"]]
            amounts = needs.bytes_at([self._values.get(register) for register in fields["ints"]])
            if len(needs.writes) != len(fields["buffers"]):
                raise ValueError("a launch does not fit its kernel")
            return list(zip(fields["buffers"], needs.writes, amounts, strict=True))
        if instruction.name == "call":
            return [
                (tensor.buffer, name == "outputs", self._bytes(tensor))
                for name in ("inputs", "outputs")
                for tensor in fields[name]
            ]
        size = self._values.get(fields["size"]) if "size" in fields else None
        return [
            (number, kind not in BUFFERS_READ, size)
            for kind, number in instruction.operands
            if is_buffer(kind)
        ]

    def _bytes(self, tensor: TensorOperand) -> int | None:
        return tensor_bytes(tensor.bits, tensor.dims, self._values)

    def _known(self, buffer: int, size: int | None) -> int | None:
        return self._sizes.get(buffer) if size is None else size

    def _read(self, buffer: int, size: int | None) -> list[str]:
        """Returns the nodes with the values of a buffer; what no step wrote gets a node."""
        ranges = self._memory.ranges(buffer, self._known(buffer, size))
        nodes = self._memory.overlapping(ranges)
        if not nodes:
            nodes = [self._value(buffer, self._known(buffer, size))]
            self._memory.write(nodes[0], ranges)
        return nodes

    def _write(self, node: str, buffer: int, size: int | None, argument: int) -> None:
        size = self._known(buffer, size)
        ranges = self._memory.ranges(buffer, size)
        for earlier in self._memory.overlapping(ranges):
            self._edge(earlier, node, "update", size, (argument,))
        value = self._value(buffer, size)
        self._edge(node, value, "write", size, (argument,))
        self._memory.write(value, ranges)

    def _value(self, buffer: int, size: int | None) -> str:
        """Adds a node for a new value of a buffer, and returns it."""
        version = self._versions[buffer] = self._versions.get(buffer, 0) + 1
        node = f"b{buffer}" if version == 1 else f"b{buffer}.{version}"
        described = self._program.buffers[buffer]
        self.graph.add_node(
            node, kind="buffer", buffer=buffer, version=version, label=described.label,
            place=described.place,
        )  # fmt: skip
        attributes: dict[str, Any] = self.graph.nodes[node]
        size = self._sizes.get(buffer, size)
        if size is not None:
            attributes["bytes"] = size
        if described.place in ("arena", "symmetric"):
            attributes["first"], attributes["last"] = self._lives[buffer]
            offset = self._values.get(described.numbers["offset"])
            if offset is not None:
                attributes["offset"] = offset
        return node

    def _edge(
        self, source: str, target: str, kind: str, size: int | None, arguments: tuple[int, ...]
    ) -> None:
        """Adds an edge, or adds to one: a step may access a value by several arguments.

        An edge of several kinds keeps the first of `_STRENGTHS`.
        """
        earlier = self.graph.get_edge_data(source, target, default={})
        kinds = [kind, *([earlier["kind"]] if earlier else [])]
        data: dict[str, Any] = {
            "kind": min(kinds, key=_STRENGTHS.index),
            "arguments": (*earlier.get("arguments", ()), *arguments),
        }
        sizes = [number for number in (size, earlier.get("bytes")) if number is not None]
        if sizes:
            data["bytes"] = max(sizes)
        self.graph.add_edge(source, target, **data)
