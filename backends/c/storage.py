"""Where the buffers of a program lie in the C file: arguments, constants, and static arrays.

Every array has one element type, as C's rules of aliasing want it.  Ranges of the planned arena are
moved together in an arena for each element type: what did not overlap there does not overlap here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tcc.backends.c.kernel import KernelFunction
from tcc.backends.c.names import Names
from tcc.backends.c.types import memory_type
from tcc.errors import InternalError, UserError
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    BufferId,
    CallOp,
    Copy,
    Dynamic,
    Input,
    Launch,
    Output,
    Program,
    ReadInt,
    State,
    View,
    Weight,
)
from tcc.ir.program.operands import walk_instructions
from tcc.ir.tile import TileKernel
from tcc.ir.types import DType

ALIGN = 64


@dataclass(slots=True)
class Storage:
    """What each buffer is in C: its element `types`, the text that is its address, and whether it
    can be written.  `declarations` are the static arrays, `pointers` those that views aim."""

    types: dict[BufferId, str]
    names: dict[BufferId, str]
    constant: set[BufferId]
    declarations: list[str]
    pointers: list[str]
    weights: dict[BufferId, tuple[str, str, int, int]]  # name, element type, offset, bytes
    bytes: int


def element_types(
    program: Program, kernels: Sequence[TileKernel], functions: Sequence[KernelFunction]
) -> dict[BufferId, DType]:
    """The element type as which each buffer is used first."""
    found: dict[BufferId, DType] = {}
    ports = {Input: program.inputs, Output: program.outputs}
    for number, buffer in enumerate(program.buffers):
        if isinstance(buffer.place, Input | Output):
            found[number] = ports[type(buffer.place)][buffer.place.port].dtype
    for instr in walk_instructions(program.body):
        match instr:
            case Launch():
                for place in functions[instr.kernel].buffers:
                    dtype = kernels[instr.kernel].buffers[place].dtype
                    found.setdefault(instr.buffers[place], dtype)
            case CallOp():
                for ref in (*instr.inputs, *instr.outputs):
                    found.setdefault(ref.buffer, ref.dtype)
            case ReadInt():
                found.setdefault(instr.buffer, instr.dtype)
    return _through_copies(program, found)


def _through_copies(program: Program, found: dict[BufferId, DType]) -> dict[BufferId, DType]:
    """What is only copied, or seen through another buffer, has the other's type."""
    body = list(walk_instructions(program.body))
    pairs = [(i.target, i.source) for i in body if isinstance(i, Copy)]
    pairs += [(i.buffer, i.base) for i in body if isinstance(i, View)]
    pairs += [(b, a) for a, b in pairs]
    for _ in pairs:
        for one, other in pairs:
            if other in found:
                found.setdefault(one, found[other])
    return found


def place_buffers(
    program: Program,
    dtypes: Mapping[BufferId, DType],
    sizes: Mapping[int, int],
    ports: Mapping[type, Sequence[str]],
    names: Names,
) -> Storage:
    """The storage of all buffers that something uses.  `sizes` are the registers that are known,
    `ports` the names of inputs and outputs.

    Raises UserError where data decide the size of a buffer.
    """
    made = Storage({}, {}, set(), [], [], {}, 0)
    made.types = {number: memory_type(dtype) for number, dtype in dtypes.items()}
    weights: dict[tuple[int, int, str], str] = {}
    ranges: dict[BufferId, tuple[int, int]] = {}
    dynamic = _dynamic_sizes(program, sizes)
    written = _written(program)
    for number, buffer in enumerate(program.buffers):
        if number not in dtypes:
            continue
        place, kind = buffer.place, made.types[number]
        match place:
            case Input() | Output():
                made.names[number] = ports[type(place)][place.port]
                if isinstance(place, Input):
                    made.constant.add(number)
            case Weight():
                key = (place.offset, place.size, kind)
                if key not in weights:
                    weights[key] = names.fresh(f"weight_{buffer.label}")
                made.names[number] = weights[key]
                made.weights[number] = (weights[key], kind, place.offset, place.size)
                made.constant.add(number)
            case Arena():
                ranges[number] = _range(place, sizes, buffer.label)
            case State() | Dynamic():
                size = place.size if isinstance(place, State) else dynamic[number]
                made.names[number] = names.fresh(f"memory_{buffer.label}")
                _declare(made, kind, made.names[number], size, buffer.label)
            case Alias():
                made.names[number] = name = names.fresh(f"part_{buffer.label}")
                const = "" if number in written else "const "
                if const:
                    made.constant.add(number)
                made.pointers.append(f"    {const}{kind} *{name} = NULL;")
            case _:
                raise InternalError(f"no place {place}", where="backends/c")
    _place_arena(made, ranges, names)
    return made


def _range(place: Arena, sizes: Mapping[int, int], label: str) -> tuple[int, int]:
    if place.offset not in sizes or place.size not in sizes:
        raise refused_size(label)
    return sizes[place.offset], sizes[place.offset] + sizes[place.size]


def refused_size(label: str) -> UserError:
    """Of a buffer whose size is not known before the run."""
    return UserError(
        "C files have a static arena",
        where=label,
        why="data decide the size of this value",
        hint="compile for the CPU, where memory is taken during the run",
    )


def _dynamic_sizes(program: Program, sizes: Mapping[int, int]) -> dict[BufferId, int | None]:
    """The most bytes that each dynamic buffer is given; None where that is not known."""
    found: dict[BufferId, int | None] = {}
    for instr in walk_instructions(program.body):
        if isinstance(instr, Allocate):
            known, before = sizes.get(instr.size), found.get(instr.buffer, 0)
            found[instr.buffer] = None if known is None or before is None else max(known, before)
    return found


def _written(program: Program) -> set[BufferId]:
    found: set[BufferId] = set()
    for instr in walk_instructions(program.body):
        if isinstance(instr, Launch):
            found.update(
                instr.buffers
            )  # the kernel says which: a view of an input is never stored to
        elif isinstance(instr, CallOp):
            found.update(ref.buffer for ref in instr.outputs)
        elif isinstance(instr, Copy):
            found.add(instr.target)
    return found


def _place_arena(made: Storage, ranges: Mapping[BufferId, tuple[int, int]], names: Names) -> None:
    by_type: dict[str, list[BufferId]] = {}
    for number in ranges:
        by_type.setdefault(made.types[number], []).append(number)
    for kind, numbers in by_type.items():
        arena = names.fresh(f"arena_{kind.removesuffix('_t')}")
        starts: dict[BufferId, int] = {}
        for number in sorted(numbers, key=ranges.__getitem__):
            first, _ = ranges[number]
            below = [n for n in starts if ranges[n][1] <= first]
            ends = (starts[n] + ranges[n][1] - ranges[n][0] for n in below)
            starts[number] = -(-max(ends, default=0) // ALIGN) * ALIGN
        element = element_bytes(kind)
        for number, start in starts.items():
            made.names[number] = f"{arena} + {start // element}" if start else arena
        total = max(starts[n] + ranges[n][1] - ranges[n][0] for n in numbers)
        _declare(made, kind, arena, total)


def _declare(made: Storage, kind: str, name: str, size: int | None, label: str = "") -> None:
    if size is None:
        raise refused_size(label)
    count = max(-(-size // element_bytes(kind)), 1)
    made.declarations.append(f"static _Alignas({ALIGN}) {kind} {name}[{count}];")
    made.bytes += count * element_bytes(kind)


def element_bytes(kind: str) -> int:
    """Bytes of an element of a C type."""
    known = {"float": 4, "double": 8}
    return known.get(kind) or int("".join(filter(str.isdigit, kind))) // 8
