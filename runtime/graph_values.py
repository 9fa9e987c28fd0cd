"""Which step reads what another wrote: values of buffers, by the bytes of memory that they take.

A step that writes where an earlier value lies depends on it, because it may keep a part of it. The
body of a loop is visited once: edges from one iteration to the next are left out, so the graph has
no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tcc.runtime.host_program import HostProgram


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `begin` to `end` (None: to the end) of the memory of the buffer `root`."""

    root: int
    begin: int
    end: int | None

    def overlaps(self, other: ByteRange) -> bool:
        """True if the ranges share a byte."""
        return (self.end is None or other.begin < self.end) and (
            other.end is None or self.begin < other.end
        )

    def covers(self, other: ByteRange) -> bool:
        """True if all bytes of `other` are in this range."""
        return self.begin <= other.begin and (
            self.end is None or (other.end is not None and other.end <= self.end)
        )


@dataclass(frozen=True, slots=True)
class BufferValue:
    """A node of the graph that holds what a step wrote to a range."""

    node: str
    range: ByteRange


class ValueMemory:
    """The values in all buffers at a point of the program.

    A view and its base share memory, and so do an output and the input that it updates. `values`
    maps the root of shared memory to its values. `places` maps each buffer to the places where it
    may lie: (root, offset), with None for an unknown offset.
    """

    def __init__(self, program: HostProgram) -> None:
        self.values: dict[int, tuple[BufferValue, ...]] = {}
        self.places: dict[int, tuple[tuple[int, int | None], ...]] = {}
        inputs = {
            buffer.numbers["port"]: number
            for number, buffer in enumerate(program.buffers)
            if buffer.place == "input"
        }
        for number, buffer in enumerate(program.buffers):
            port = buffer.numbers.get("port", -1)
            if buffer.place == "output" and 0 <= port < len(program.outputs):
                root = inputs.get(program.outputs[port].state)
                if root is not None:
                    self.places[number] = ((root, 0),)

    def copy(self) -> ValueMemory:
        """Returns a copy that later writes do not change."""
        other = object.__new__(ValueMemory)
        other.values, other.places = self.values.copy(), self.places.copy()
        return other

    def join(self, other: ValueMemory) -> None:
        """Adds what another way through a branch wrote, and where it aimed views."""
        for mine, theirs in ((self.values, other.values), (self.places, other.places)):
            table: dict[int, tuple[Any, ...]] = mine
            for key, items in theirs.items():
                if table.get(key) != items:
                    table[key] = tuple(dict.fromkeys((*table.get(key, ()), *items)))

    def aim(self, view: int, base: int, offset: int | None) -> None:
        """Makes a buffer a view of another, from an offset in bytes on."""
        self.places[view] = tuple(
            (root, None if start is None or offset is None else start + offset)
            for root, start in self.places.get(base, ((base, 0),))
        )

    def ranges(self, buffer: int, size: int | None) -> list[ByteRange]:
        """Returns the ranges where the first `size` bytes of a buffer may lie."""
        return [
            ByteRange(root, 0, None)
            if start is None
            else ByteRange(root, start, None if size is None else start + size)
            for root, start in self.places.get(buffer, ((buffer, 0),))
        ]

    def overlapping(self, ranges: Iterable[ByteRange]) -> list[str]:
        """Returns the nodes of all values that share bytes with the ranges."""
        nodes = (
            value.node
            for part in ranges
            for value in self.values.get(part.root, ())
            if value.range.overlaps(part)
        )
        return list(dict.fromkeys(nodes))

    def write(self, node: str, ranges: Iterable[ByteRange]) -> None:
        """Puts a value into ranges, in place of the values that they cover."""
        parts = list(ranges)
        for part in parts:
            earlier = self.values.get(part.root, ())
            if len(parts) == 1:
                earlier = tuple(value for value in earlier if not part.covers(value.range))
            self.values[part.root] = (*earlier, BufferValue(node, part))

    def clear(self, buffer: int) -> None:
        """Forgets the values of a buffer that gets new memory."""
        for root, _ in self.places.get(buffer, ((buffer, 0),)):
            self.values.pop(root, None)


def buffer_sizes(program: HostProgram, values: Mapping[int, int]) -> dict[int, int]:
    """Returns the bytes of each buffer whose size is known.

    `values` has the values of registers.
    """
    sizes: dict[int, int] = {}
    for number, buffer in enumerate(program.buffers):
        match buffer.place:
            case "arena" | "symmetric":
                size = values.get(buffer.numbers["size"])
            case "weight" | "state":
                size = buffer.numbers["size"]
            case "input" | "output":
                ports = program.inputs if buffer.place == "input" else program.outputs
                port = buffer.numbers["port"]
                size = None
                if 0 <= port < len(ports):
                    size = tensor_bytes(ports[port].bits, ports[port].dims, values)
            case _:
                size = None
        if size is not None and size >= 0:
            sizes[number] = size
    return sizes


def tensor_bytes(bits: int, dims: Iterable[int], values: Mapping[int, int]) -> int | None:
    """Returns the bytes of an array whose sizes stand in registers; None if one is unknown."""
    count = 1
    for dim in dims:
        size = values.get(dim)
        if size is None:
            return None
        count *= size
    return (count * bits + 7) // 8
