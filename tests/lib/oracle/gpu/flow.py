"""The flow of control and of data in a kernel's code: its loops, and what registers come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx

from tests.lib.emulator.ptx.parse import Address, Instruction, Kernel, Name, Operand, Several

# An instruction of machine code: its address, its guard, its name, and its operands.
_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@\S+ )?([A-Z][\w.]*)([^;]*)")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction: its name, and the positions of the instructions that may follow it."""

    name: str
    after: tuple[int, ...]


def machine_steps(listing: str) -> list[Step]:
    """Returns the instructions of NVIDIA's machine code as `nvdisasm` lists it.

    The targets of an indirect branch are unknown, so nothing follows it.
    """
    rows = [match.groups() for match in map(_LINE.match, listing.splitlines()) if match]
    at = {int(row[0], 16): n for n, row in enumerate(rows)}
    steps = []
    for n, (_, guard, name, operands) in enumerate(rows):
        target = _TARGET.search(operands.rstrip()) if name.startswith("BRA") else None
        after = [at[int(target[1], 16)]] if target and int(target[1], 16) in at else []
        if not name.startswith(("BRA", "BRX", "EXIT", "RET")) or guard or "," in operands:
            after.append(n + 1)
        steps.append(Step(name, tuple(m for m in dict.fromkeys(after) if m < len(rows))))
    return steps


def ptx_steps(kernel: Kernel) -> list[Step]:
    """Returns the instructions of a kernel's PTX."""
    steps = []
    for n, instruction in enumerate(kernel.code):
        after = []
        if instruction.opcode.startswith("brx"):
            targets = (t for table in kernel.tables.values() for t in table)
            after = [kernel.labels[t] for t in targets if t in kernel.labels]
        elif instruction.opcode.startswith("bra"):
            after = [kernel.labels[o.text] for o in instruction.operands if isinstance(o, Name)]
        if not instruction.opcode.startswith(("bra", "brx", "ret", "exit")) or instruction.guard:
            after.append(n + 1)
        successors = tuple(m for m in dict.fromkeys(after) if m < len(kernel.code))
        steps.append(Step(instruction.opcode, successors))
    return steps


def loops(steps: Sequence[Step]) -> list[frozenset[int]]:
    """Returns the instructions of each natural loop (Aho, Lam, Sethi and Ullman, section 9.6).

    A loop belongs to an edge back to an instruction that all ways to the edge pass. Loops with one
    head are one loop.
    """
    graph = nx.DiGraph()
    root = -1
    graph.add_nodes_from(range(len(steps)))
    graph.add_edges_from((n, m) for n, step in enumerate(steps) for m in step.after)
    # An instruction that no known branch reaches is the target of an indirect branch.
    starts = [n for n in range(len(steps)) if not n or not graph.in_degree(n)]
    graph.add_edges_from((root, n) for n in starts)
    above = nx.immediate_dominators(graph, root)
    bodies: dict[int, set[int]] = {}
    for n, step in enumerate(steps):
        for head in step.after:
            if head <= n and _dominates(above, head, n):
                bodies.setdefault(head, {head}).update(_reaching(graph, n, head))
    return [frozenset(body) for body in bodies.values()]


def _dominates(above: Mapping[int, int], head: int, node: int) -> bool:
    while node > head and node in above and above[node] != node:
        node = above[node]
    return node == head


def _reaching(graph: nx.DiGraph, last: int, head: int) -> set[int]:
    """Returns the nodes from which a way leads to `last` without passing `head`."""
    nodes, waiting = {head, last}, [last] if last != head else []
    while waiting:
        for before in graph.predecessors(waiting.pop()):
            if before not in nodes:
                nodes.add(before)
                waiting.append(before)
    return nodes


def depths(steps: Sequence[Step]) -> list[int]:
    """Returns for each instruction the number of loops around it."""
    counts = [0] * len(steps)
    for body in loops(steps):
        for n in body:
            counts[n] += 1
    return counts


@dataclass
class Origins:
    """The parameters from which each register's value comes.

    `addresses`: the register holds an address in the parameter's buffer, or the address of its
    tensor map. `data`: it was loaded from there.
    """

    addresses: dict[str, frozenset[int]] = field(default_factory=dict)
    data: dict[str, frozenset[int]] = field(default_factory=dict)

    def of(self, operand: Operand) -> frozenset[int]:
        """Returns the parameters whose buffers the address `operand` may point into."""
        return _union(self.addresses, operand)

    def loaded(self, operand: Operand) -> frozenset[int]:
        """Returns the parameters from whose buffers the value `operand` was loaded."""
        return _union(self.data, operand)


def origins(kernel: Kernel) -> Origins:
    """Returns where the registers of a kernel come from, by the instructions that compute them.

    Matrix instructions end the search, because sums are no copies of operands.
    """
    numbers = {name: n for n, name in enumerate(kernel.parameters)}
    result = Origins({name: frozenset({n}) for name, n in numbers.items()})
    changed = True
    while changed:
        changed = False
        for instruction in kernel.code:
            if instruction.opcode.startswith(
                ("st.", "cp.", "wgmma", "mma", "bra", "red", "mbarrier")
            ):
                continue
            if len(instruction.operands) < 2:
                continue
            target, *sources = instruction.operands
            points = frozenset().union(*map(result.of, sources))
            data = frozenset().union(*map(result.loaded, sources))
            if instruction.opcode.startswith("ld.global"):
                points, data = frozenset(), points
            elif instruction.opcode.startswith(("ld.shared", "ldmatrix")):
                continue
            for name in _names(target):
                for table, new in ((result.addresses, points), (result.data, data)):
                    if not new <= table.get(name, frozenset()):
                        table[name] = table.get(name, frozenset()) | new
                        changed = True
    return result


def _union(table: Mapping[str, frozenset[int]], operand: Operand) -> frozenset[int]:
    return frozenset().union(*(table.get(name, frozenset()) for name in _names(operand)))


def _names(operand: Operand) -> Iterator[str]:
    match operand:
        case Name(text):
            yield text
        case Several(parts):
            for part in parts:
                yield from _names(part)
        case Address(base):
            yield from _names(base)


def width(instruction: Instruction) -> int:
    """Returns the bytes that a lane moves by a load or a store (`ld.global.v4.b32`: 16)."""
    lanes = re.search(r"\.v(\d)", instruction.opcode)
    bits = re.search(r"[bfus](\d+)$", instruction.opcode)
    return int(lanes[1] if lanes else 1) * (int(bits[1]) if bits else 8) // 8
