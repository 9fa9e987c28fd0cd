"""Where the buffers of a program lie in the C file: arguments, constants, and static arrays.

Every array has one element type, as C's rules of aliasing want it.  Ranges of the planned arena are
moved together in an arena for each element type: what did not overlap there does not overlap here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from tcc.backends.c.kernel import KernelFunction
from tcc.backends.c.names import Names
from tcc.backends.c.types import stored_as, value_type
from tcc.errors import InternalError, UserError
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    BufferId,
    CallOp,
    Copy,
    Dynamic,
    Input,
    Launch,
    Loop,
    Output,
    Place,
    Port,
    Program,
    ReadInt,
    State,
    Symmetric,
    View,
    Weight,
)
from tcc.ir.program.operands import operands, walk_instructions
from tcc.ir.program.table import Kind
from tcc.ir.types import BOOL, DType
from tcc.record import record

ALIGN = 64


@record
class Argument:
    """An input or output of the model, as the parameter `name` of the C function."""

    name: str
    port: Port


@dataclass(slots=True)
class Storage:
    """What each buffer is in C: the `types` whose C types elements have, the text that is its
    address, and whether it can be written.  `declarations` are the static arrays, `pointers` those
    that views aim, `weights` the names of arrays of weights."""

    types: dict[BufferId, DType]
    names: dict[BufferId, str]
    constant: set[BufferId]
    declarations: list[str]
    pointers: list[str]
    weights: dict[tuple[Weight, DType], str]
    bytes: int


def element_types(
    program: Program, functions: Sequence[KernelFunction], arguments: Mapping[Place, Argument]
) -> dict[BufferId, DType]:
    """The element type as which each buffer that something uses is used first."""
    found = {
        number: arguments[buffer.place].port.dtype
        for number, buffer in enumerate(program.buffers)
        if buffer.place in arguments
    }
    body = list(walk_instructions(program.body))
    for instr in body:
        match instr:
            case Launch():
                for place, taken in functions[instr.kernel].buffers:
                    found.setdefault(instr.buffers[place], taken.dtype)
            case CallOp():
                for ref in (*instr.inputs, *instr.outputs):
                    found.setdefault(ref.buffer, ref.dtype)
            case ReadInt():
                found.setdefault(instr.buffer, instr.dtype)
            case Branch(condition=buffer) | Loop(condition=buffer) if buffer >= 0:
                found.setdefault(buffer, BOOL)
    # What is only copied, or only seen through another buffer, has the other's type.
    copies = [(i.target, i.source) for i in body if isinstance(i, Copy)]
    pairs = [*copies, *((b, a) for a, b in copies)]
    pairs += [(i.base, i.buffer) for i in body if isinstance(i, View)]
    for _ in pairs:
        for one, other in pairs:
            if other in found:
                found.setdefault(one, found[other])
    return {number: stored_as(dtype) for number, dtype in found.items()}


def place_buffers(
    program: Program,
    dtypes: Mapping[BufferId, DType],
    sizes: Mapping[int, int],
    arguments: Mapping[Place, Argument],
    names: Names,
    beside: str,
) -> Storage:
    """The storage of all buffers that something uses.  `sizes` are the registers that are known;
    `beside` is the pointer to all weights, empty where each becomes an array.

    Raises UserError where data decide the size of a buffer.
    """
    made = Storage(dict(dtypes), {}, set(), [], [], {}, 0)
    ranges: dict[BufferId, tuple[int, int]] = {}
    dynamic = _dynamic_sizes(program, sizes)
    written = _written(program)
    for number, dtype in sorted(dtypes.items()):
        buffer = program.buffers[number]
        place = buffer.place
        match place:
            case Input() | Output():
                made.names[number] = arguments[place].name
                if isinstance(place, Input):
                    made.constant.add(number)
            case Weight():
                made.constant.add(number)
                if beside:
                    at = f"(const void *)({beside} + {place.offset})"
                    made.names[number] = f"(const {value_type(dtype)} *){at}"
                    continue
                if (place, dtype) not in made.weights:
                    made.weights[place, dtype] = names.fresh(f"weight_{buffer.label}")
                made.names[number] = made.weights[place, dtype]
            case Arena():
                ranges[number] = _range(place, sizes, buffer.label)
            case State() | Dynamic():
                size = place.size if isinstance(place, State) else dynamic[number]
                made.names[number] = names.fresh(f"memory_{buffer.label}")
                _declare(made, dtype, made.names[number], size, buffer.label)
            case Alias():
                made.names[number] = name = names.fresh(f"part_{buffer.label}")
                const = "" if number in written else "const "
                if const:
                    made.constant.add(number)
                made.pointers.append(f"    {const}{value_type(dtype)} *{name} = NULL;")
            case Symmetric():
                raise InternalError("no C file has this place", where=buffer.label)
            case _:
                assert_never(place)
    _place_arena(made, ranges, names)
    return made


def _range(place: Arena, sizes: Mapping[int, int], label: str) -> tuple[int, int]:
    if place.offset not in sizes or place.size not in sizes:
        raise refused_size(label)
    return sizes[place.offset], sizes[place.offset] + sizes[place.size]


def refused_size(label: str) -> UserError:
    """Of a value whose size is not known before the run."""
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
    """Buffers that are, or may be, stored to: kernels say themselves which."""
    every = (named for instr in walk_instructions(program.body) for named in operands(instr))
    return {value for kind, value in every if kind in (Kind.WRITTEN, Kind.TOUCHED)}


def _place_arena(made: Storage, ranges: Mapping[BufferId, tuple[int, int]], names: Names) -> None:
    by_type: dict[DType, list[BufferId]] = {}
    for number in ranges:
        by_type.setdefault(made.types[number], []).append(number)
    for dtype, numbers in by_type.items():
        arena = names.fresh(f"arena_{value_type(dtype).removesuffix('_t')}")
        ends: dict[BufferId, int] = {}
        for number in sorted(numbers, key=ranges.__getitem__):
            first, last = ranges[number]
            below = (end for n, end in ends.items() if ranges[n][1] <= first)
            start = -(-max(below, default=0) // ALIGN) * ALIGN
            ends[number] = start + last - first
            made.names[number] = f"{arena} + {start // dtype.bytes}" if start else arena
        _declare(made, dtype, arena, max(ends.values()))


def _declare(made: Storage, dtype: DType, name: str, size: int | None, label: str = "") -> None:
    if size is None:
        raise refused_size(label)
    count = max(-(-size // dtype.bytes), 1)
    made.declarations.append(f"static _Alignas({ALIGN}) {value_type(dtype)} {name}[{count}];")
    made.bytes += count * dtype.bytes
