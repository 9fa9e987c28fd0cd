"""Places the buffers of a program in the C file: as arguments, constants or static arrays.

C's aliasing rules demand that each array has one element type. So there is an arena for each
element type. The ranges of the planned arena are compacted into these arenas, and ranges that did
not overlap still do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from tcc.backends.c.kernel import KernelFunction
from tcc.backends.c.names import CNames
from tcc.backends.c.types import stored_as, value_type
from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
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

ALIGN = 64


@frozen
class Argument:
    """An input or output of the model, as parameter `name` of the C function."""

    name: str
    port: Port


@dataclass(slots=True)
class CStorage:
    """The C form of each buffer.

    `types` maps a buffer to its element type, and `names` to the C text of its address. `constant`
    are the buffers that cannot be written. `declarations` are the lines of the static arrays,
    `pointers` the pointers that views set, and `weights` the names of the arrays of weights.
    `bytes` is the total size of the static arrays.
    """

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
    """Returns the element type of each used buffer, which its first use decides."""
    dtypes = {
        number: arguments[buffer.place].port.dtype
        for number, buffer in enumerate(program.buffers)
        if buffer.place in arguments
    }
    body = list(walk_instructions(program.body))
    for instr in body:
        match instr:
            case Launch():
                for place, parameter in functions[instr.kernel].buffers:
                    dtypes.setdefault(instr.buffers[place], parameter.dtype)
            case CallOp():
                for ref in (*instr.inputs, *instr.outputs):
                    dtypes.setdefault(ref.buffer, ref.dtype)
            case ReadInt():
                dtypes.setdefault(instr.buffer, instr.dtype)
            case Branch(condition=buffer) | Loop(condition=buffer) if buffer >= 0:
                dtypes.setdefault(buffer, BOOL)
    # A buffer that is only copied takes the type of the copy's other buffer. A buffer of which
    # there are only views takes the type of a view.
    copies = [(i.target, i.source) for i in body if isinstance(i, Copy)]
    pairs = [*copies, *((b, a) for a, b in copies)]
    pairs += [(i.base, i.buffer) for i in body if isinstance(i, View)]
    for _ in pairs:
        for target, source in pairs:
            if source in dtypes:
                dtypes.setdefault(target, dtypes[source])
    return {number: stored_as(dtype) for number, dtype in dtypes.items()}


def place_buffers(
    program: Program,
    dtypes: Mapping[BufferId, DType],
    sizes: Mapping[int, int],
    arguments: Mapping[Place, Argument],
    names: CNames,
    weights: str,
) -> CStorage:
    """Returns the storage of all used buffers.

    `sizes` has the values of known registers. `weights` is the pointer to all weights, or "" if
    each weight is an array in the C file. Raises UserError for buffers of data-dependent size.
    """
    storage = CStorage(dict(dtypes), {}, set(), [], [], {}, 0)
    ranges: dict[BufferId, tuple[int, int]] = {}
    dynamic = _dynamic_sizes(program, sizes)
    uses = (use for instr in walk_instructions(program.body) for use in operands(instr))
    written_buffers = {value for kind, value in uses if kind in (Kind.WRITTEN, Kind.TOUCHED)}
    for number, dtype in sorted(dtypes.items()):
        buffer = program.buffers[number]
        place = buffer.place
        match place:
            case Input() | Output():
                storage.names[number] = arguments[place].name
                if isinstance(place, Input):
                    storage.constant.add(number)
            case Weight():
                storage.constant.add(number)
                if weights:
                    address = f"(const void *)({weights} + {place.offset})"
                    storage.names[number] = f"(const {value_type(dtype)} *){address}"
                    continue
                if (place, dtype) not in storage.weights:
                    storage.weights[place, dtype] = names.fresh(f"weight_{buffer.label}")
                storage.names[number] = storage.weights[place, dtype]
            case Arena():
                ranges[number] = _range(place, sizes, buffer.label)
            case State() | Dynamic():
                size = place.size if isinstance(place, State) else dynamic[number]
                storage.names[number] = names.fresh(f"memory_{buffer.label}")
                _declare(storage, dtype, storage.names[number], size, buffer.label)
            case Alias():
                storage.names[number] = name = names.fresh(f"part_{buffer.label}")
                const = "" if number in written_buffers else "const "
                if const:
                    storage.constant.add(number)
                storage.pointers.append(f"    {const}{value_type(dtype)} *{name} = NULL;")
            case Symmetric():
                raise InternalError("no C file has this place", where=buffer.label)
            case _:
                assert_never(place)
    _place_arena(storage, ranges, names)
    return storage


def _range(place: Arena, sizes: Mapping[int, int], label: str) -> tuple[int, int]:
    if place.offset not in sizes or place.size not in sizes:
        raise refused_size(label)
    return sizes[place.offset], sizes[place.offset] + sizes[place.size]


def refused_size(label: str) -> UserError:
    """Returns the error for a value whose size is not known before the run."""
    return UserError(
        "C files have a static arena",
        where=label,
        why="data decide the size of this value",
        hint="compile for the CPU, where memory is taken during the run",
    )


def _dynamic_sizes(program: Program, sizes: Mapping[int, int]) -> dict[BufferId, int | None]:
    """Maps each dynamic buffer to the most bytes that are allocated for it; None means unknown."""
    largest: dict[BufferId, int | None] = {}
    for instr in walk_instructions(program.body):
        if isinstance(instr, Allocate):
            size, largest_before = sizes.get(instr.size), largest.get(instr.buffer, 0)
            largest[instr.buffer] = (
                None if size is None or largest_before is None else max(size, largest_before)
            )
    return largest


def _place_arena(
    storage: CStorage, ranges: Mapping[BufferId, tuple[int, int]], names: CNames
) -> None:
    by_type: dict[DType, list[BufferId]] = {}
    for number in ranges:
        by_type.setdefault(storage.types[number], []).append(number)
    for dtype, numbers in by_type.items():
        arena = names.fresh(f"arena_{value_type(dtype).removesuffix('_t')}")
        ends: dict[BufferId, int] = {}
        for number in sorted(numbers, key=ranges.__getitem__):
            begin, stop = ranges[number]
            below = (end for n, end in ends.items() if ranges[n][1] <= begin)
            start = -(-max(below, default=0) // ALIGN) * ALIGN
            ends[number] = start + stop - begin
            storage.names[number] = f"{arena} + {start // dtype.bytes}" if start else arena
        _declare(storage, dtype, arena, max(ends.values()))


def _declare(storage: CStorage, dtype: DType, name: str, size: int | None, label: str = "") -> None:
    if size is None:
        raise refused_size(label)
    count = max(-(-size // dtype.bytes), 1)
    storage.declarations.append(f"static _Alignas({ALIGN}) {value_type(dtype)} {name}[{count}];")
    storage.bytes += count * dtype.bytes
