"""The structure of a kernel for NVIDIA's GPUs, read from its code, and rules for it.

gemm of 8192 x 8192 in bf16    a, b: the copy engine; wgmma.m64n256k16.f32.bf16.bf16
                               6 instructions of lanes beside each of them, no private memory
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from tcc.ir.expr import known_extent
from tcc.ir.tile import Block, Compute, Load, TileBuffer, TileKernel

from tests.lib.emulator.ptx.parse import Instruction, Number, kernel

from .code_rules import (
    WIDE,
    Breach,
    CheckedKernel,
    breaches,
    contiguous_elements,
    contracts,
    positioned_accesses,
    statements,
)
from .flow import Step, depths, loops, machine_steps, origins, ptx_steps, width

# The kinds of copies. ENGINE: whole boxes by the copy engine. ASYNC: by lanes that do not wait.
# LOAD and STORE: to registers, and from registers to shared memory.
ENGINE, ASYNC, LOAD, STORE = "engine", "async", "load", "store"
# Instructions of machine code that are no arithmetic of lanes: matrix units, memory, order,
# branches, and the uniform registers, whose unit works beside the lanes.
_MATRIX = re.compile(r"[HIDQO]G?MMA\b")
_OTHER = re.compile(
    r"[HIDQO]G?MMA|LD|ST|RED|ATOM|U|BAR|WARP|SYNCS|DEPBAR|FENCE|MEMBAR|CCTL|NOP|BRA|BRX|BSSY|BSYNC"
    r"|BREAK|CALL|RET|EXIT|YIELD|NANOSLEEP|ERRBAR|ELECT|VOTE|R2UR|S2UR|DEPBAR|LDGDEPBAR"
)
_PTX_MATRIX = re.compile(r"(wgmma|mma)\.\S*?\.(m\d+n(\d+)k\d+\.\S+)")


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies of an operand of matrix units in one step of the innermost loop that makes them.

    `count` instructions of the kind `way` move `bytes` of each lane; a box of the copy engine has
    no bytes of lanes. `wanted` are the bytes of a lane that sizes and alignments allow. `plain`:
    the elements reach the matrix units unchanged. `looped`: the copies are in a loop.
    """

    buffer: str
    way: str
    bytes: int
    count: int
    wanted: int
    plain: bool
    looped: bool = True


@dataclass(frozen=True, slots=True)
class Structure:
    """Facts of a kernel.

    `matrix` has the forms of matrix instructions in PTX, with their numbers. `arithmetic` is the
    number of the lanes' arithmetic instructions for each matrix instruction, in the loop with the
    most matrix instructions; None without one. `slots` are all instructions of a warp in this loop,
    and `cycles` those in which the loop's matrix instructions keep the units busy; they are 0 for
    instructions of single warps. `lone`: the loop of the tile program only loads and multiplies.
    """

    copies: tuple[Copy, ...]
    matrix: tuple[tuple[str, int], ...]
    arithmetic: float | None
    slots: int
    cycles: int
    lone: bool
    registers: int
    private: int
    warps: int
    tiles: int


def structure(checked: CheckedKernel, listing: str) -> Structure:
    """Returns the structure of a kernel; `listing` is its disassembled machine code."""
    compiled = checked.made
    matches = [_PTX_MATRIX.search(line) for line in compiled.assembly.splitlines()]
    forms = Counter(f"{f[1]}.{f[2].rstrip()}" for f in matches if f)
    arithmetic, slots, groups = _beside(machine_steps(listing))
    # A matrix instruction of a warpgroup takes half a cycle for each column.
    columns = max((int(f[3]) for f in matches if f and f[1] == "wgmma"), default=0)
    return Structure(
        tuple(_copies(checked)), tuple(sorted(forms.items())), arithmetic, slots,
        groups * columns // 2, _lone(checked.kernel), compiled.registers, compiled.private,
        compiled.warps, prod(known_extent(v) or 1 for v in checked.kernel.axes),
    )  # fmt: skip


def _beside(steps: Sequence[Step]) -> tuple[float | None, int, int]:
    """Returns (arithmetic for each matrix instruction, all instructions, matrix instructions)."""
    matrix = {n for n, step in enumerate(steps) if _MATRIX.match(step.name)}
    # Loops around loops have the same matrix instructions, so the smallest counts.
    bodies = [body for body in loops(steps) if body & matrix]
    if not bodies:
        return None, 0, 0
    body = max(bodies, key=lambda b: (len(b & matrix), -len(b)))
    return _arithmetic(steps, body) / len(body & matrix), len(body), len(body & matrix)


def _arithmetic(steps: Sequence[Step], body: frozenset[int]) -> int:
    return sum(not _OTHER.match(steps[n].name) for n in body)


def innermost_arithmetic(listing: str) -> float:
    """Returns the lanes' arithmetic instructions for each matrix instruction in the smallest loop.

    Kernels that compute the first step of a tile before the loop have more matrix instructions in
    the loop over tiles than in the loop over steps; `Structure.arithmetic` is then of the former.
    """
    steps = machine_steps(listing)
    matrix = {n for n, step in enumerate(steps) if _MATRIX.match(step.name)}
    body = min((body for body in loops(steps) if body & matrix), key=len)
    return _arithmetic(steps, body) / len(body & matrix)


def _lone(kernel: TileKernel) -> bool:
    from_loads = [_loads(kernel, block) for c in contracts(kernel.body) for block in (c.a, c.b)]
    return all(len(pairs) == 1 and pairs[0][1] for pairs in from_loads)


# ---- copies -------------------------------------------------------------------------------------


def _loads(kernel: TileKernel, block: Block) -> list[tuple[Load, bool]]:
    """Returns the loads of which an operand of a Contract consists.

    Each has True if the operand is the loaded block itself. Loads of other shapes, such as scales,
    are left out.
    """
    makers = {
        node.out: node for node in statements(kernel.body) if isinstance(node, Load | Compute)
    }
    loads, waiting, visited = list[tuple[Load, bool]](), [block], {block}
    while waiting:
        node = makers.get(waiting.pop())
        if isinstance(node, Load) and node.out.shape == block.shape:
            loads.append((node, node.out is block))
        elif isinstance(node, Compute):
            waiting += [arg for arg in node.args if arg not in visited]
            visited.update(node.args)
    return loads


def _copies(checked: CheckedKernel) -> Iterator[Copy]:
    """Yields the copies of the operands of Contracts, from the kernel's PTX."""
    body, compiled = checked.kernel, checked.made
    facts: dict[TileBuffer, tuple[int, bool]] = {}
    steps = {id(node): at for node, at in positioned_accesses(body.body)}
    for contract in contracts(body.body):
        for block in (contract.a, contract.b):
            for node, plain in _loads(body, block):
                widths, old = _wanted(checked, node, steps[id(node)]), facts.get(node.buffer)
                facts[node.buffer] = (
                    (widths, plain) if old is None else (min(old[0], widths), plain and old[1])
                )
    if not facts:
        return
    code = kernel(compiled.assembly, compiled.symbol)
    places, inside = origins(code), depths(ptx_steps(code))
    numbers = {b: _parameters(checked, n) for n, b in enumerate(body.buffers) if b in facts}
    moves = [
        (n, *move)
        for n, instruction in enumerate(code.code)
        if (move := _move(instruction)) is not None
    ]
    for buffer, parameters in numbers.items():
        copies = [
            (inside[n], way, bytes_)
            for n, way, bytes_, operand in moves
            if parameters & (places.loaded(operand) if way is STORE else places.of(operand))
        ]
        deepest = max((depth for depth, *_ in copies), default=0)
        counts = Counter((way, bytes_) for depth, way, bytes_ in copies if depth == deepest)
        for (way, bytes_), count in sorted(counts.items()):
            yield Copy(buffer.name, way, bytes_, count, *facts[buffer], deepest > 0)


def _parameters(checked: CheckedKernel, number: int) -> frozenset[int]:
    """Returns the parameters of a launch that lead to a buffer: its pointer and its tensor maps."""
    numbers, at = {number}, len(checked.kernel.buffers) + len(checked.kernel.sizes)
    for tensor_map in checked.made.maps:
        if tensor_map.buffer == number:
            numbers.add(at)
        at += 1 + 2 * len(tensor_map.sizes)
    return frozenset(numbers)


def _move(instruction: Instruction) -> tuple[str, int, object] | None:
    """Returns (way, bytes of a lane, the operand that leads to the buffer) of a copy."""
    match instruction.opcode.split(".")[:3]:
        case ["cp", "async", "bulk"]:
            if (
                ".shared" in instruction.opcode.split(".global")[0]
                and ".tensor" in instruction.opcode
            ):
                return ENGINE, 0, instruction.operands[1]
        case ["cp", "async", "ca" | "cg"]:
            size = instruction.operands[2]
            assert isinstance(size, Number)
            return ASYNC, size.value, instruction.operands[1]
        case ["ld", "global", *_]:
            return LOAD, width(instruction), instruction.operands[1]
        case ["st", "shared", *_]:
            return STORE, width(instruction), instruction.operands[1]
    return None


def _wanted(checked: CheckedKernel, node: Load, steps: Mapping[object, object]) -> int:
    """Returns the bytes of a lane in which a block can be loaded: at most 16.

    Neighbours in memory lie along some axis of the block; every lane of the tile takes part.
    """
    aligned = dict(zip(checked.kernel.buffers, checked.alignments, strict=True))[node.buffer]
    size, threads = node.buffer.dtype.bytes, checked.made.warps * checked.made.warp_size
    most = min(WIDE, aligned, max(size, prod(node.out.shape) * size // threads))
    runs = (contiguous_elements(node, axis, most // size, steps) for axis in range(2))
    return size * max(runs) if len(node.out.shape) == 2 else size


# ---- rules --------------------------------------------------------------------------------------


def _wide(facts: Structure) -> str:
    narrow = [
        f"{c.count} of {c.bytes} bytes ({c.way}) where {c.wanted} fit, of {c.buffer}"
        for c in facts.copies
        if c.way is not ENGINE and c.bytes < c.wanted
    ]
    return "; ".join(narrow)


def _asynchronous(facts: Structure) -> str:
    """Copies of less than four bytes cannot be asynchronous; without a loop, no work hides them."""
    slow = [c for c in facts.copies if c.way in (LOAD, STORE) and c.plain and c.looped]
    waiting = dict.fromkeys(c.buffer for c in slow if c.wanted >= 4)
    return f"lanes wait for {', '.join(waiting)}" if waiting and facts.matrix else ""


def _beside_matrix(facts: Structure) -> str:
    if not facts.lone or not facts.cycles or facts.slots <= facts.cycles:
        return ""
    return f"{facts.slots} instructions beside {facts.cycles} cycles of matrix units"


RULES: Mapping[str, Callable[[Structure], str]] = MappingProxyType(
    {
        "wide copies": _wide,
        "asynchronous copies": _asynchronous,
        "matrix units are not kept waiting": _beside_matrix,
    }
)


def broken_by(facts: Structure) -> tuple[Breach, ...]:
    """Returns the rules of RULES that a structure breaks, in the order of the table."""
    texts = ((name, rule(facts)) for name, rule in RULES.items())
    return tuple(Breach(name, text) for name, text in texts if text)


def structure_breaches(checked: CheckedKernel, facts: Structure) -> tuple[Breach, ...]:
    """Returns the rules that a kernel breaks: those of its machine code, then RULES."""
    return (*breaches(checked), *broken_by(facts))
