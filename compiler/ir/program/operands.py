"""The operands of instructions: registers, buffers and kernels, and how they are used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tcc.ir.program import (
    Body,
    BufferId,
    CallOp,
    Collective,
    Input,
    Instr,
    Launch,
    Output,
    Place,
    Program,
    Register,
    View,
    Wait,
)
from tcc.ir.program.table import Field, FieldCount, Kind, row_of

_USED = (Kind.USED, Kind.WHEN, Kind.LEAST)
STEPS = (Launch, CallOp, Collective, Wait)  # the instructions that work on elements or wait


def operands(node: Instr | Place) -> Iterator[tuple[Kind, Any]]:
    """Yields (kind, value) for each field of `node`, in order.

    A list yields a pair for each item. Absent values yield nothing.
    """
    for field in row_of(node).fields:
        kind, value = field.kind, getattr(node, field.name)
        match field.form:
            case FieldCount.MANY:
                yield from ((kind, item) for item in value)
            case FieldCount.TENSORS:
                for ref in value:
                    yield kind, ref.buffer
                    yield from ((Kind.USED, register) for register in ref.dims)
            case FieldCount.ONE if value != kind.absent:
                yield kind, value


def buffers_of(instr: Instr) -> tuple[BufferId, ...]:
    """Returns the buffers that an instruction itself names, without those of its bodies."""
    return tuple(value for kind, value in operands(instr) if kind.letter == "b")


def used_registers(instr: Instr) -> set[Register]:
    """Returns the registers that an instruction itself reads."""
    return {value for kind, value in operands(instr) if kind in _USED}


def defined_registers(instr: Instr) -> set[Register]:
    """Returns the registers that an instruction itself writes."""
    return {value for kind, value in operands(instr) if kind is Kind.DEFINED}


def bodies_of(instr: Instr) -> tuple[Body, ...]:
    """Returns the bodies of an instruction in order of the text."""
    return tuple(value for kind, value in operands(instr) if kind is Kind.BODY)


def walk_instructions(body: Sequence[Instr]) -> Iterator[Instr]:
    """Yields every instruction in order of the text; bodies follow their instruction."""
    for instr in body:
        yield instr
        for inner in bodies_of(instr):
            yield from walk_instructions(inner)


def steps_of(body: Sequence[Instr]) -> tuple[int | str, ...]:
    """Returns an item for each instruction that works on elements, in order of the text.

    The item is the kernel's number for a launch, the function's name for a call, the name of its
    kind for a collective, and "wait" for a wait.
    """
    return tuple(
        instr.kernel
        if isinstance(instr, Launch)
        else instr.op
        if isinstance(instr, CallOp)
        else "wait"
        if isinstance(instr, Wait)
        else instr.kind.name.lower()
        for instr in walk_instructions(body)
        if isinstance(instr, STEPS)
    )


def shared_memory(program: Program) -> dict[BufferId, frozenset[BufferId]]:
    """Maps each buffer that shares memory with another to all buffers in this memory, itself
    included.

    A view shares memory with its base, and an output with the input that it updates in place.
    """
    pairs = [(i.buffer, i.base) for i in walk_instructions(program.body) if isinstance(i, View)]
    ports = {b.place: n for n, b in enumerate(program.buffers) if isinstance(b.place, Input)}
    for number, buffer in enumerate(program.buffers):
        if isinstance(buffer.place, Output):
            updated = ports.get(Input(program.outputs[buffer.place.port].state))
            pairs += [(number, updated)] if updated is not None else []
    shared: dict[BufferId, frozenset[BufferId]] = {}
    for pair in pairs:
        connected = frozenset(pair).union(*(shared.get(end, ()) for end in pair))
        shared |= dict.fromkeys(connected, connected)
    return shared


def memory_of(instr: Instr, shared: Mapping[BufferId, frozenset[BufferId]]) -> set[BufferId]:
    """Returns the buffers that an instruction itself names and all buffers in the same memory.

    `shared` is the result of `shared_memory`.
    """
    return {other for b in buffers_of(instr) for other in shared.get(b, (b,))}


def renumbered(
    instr: Instr,
    moves: Mapping[str, Callable[[int], int]],
    body: Callable[[Body], Body] = tuple,
) -> Instr:
    """Returns `instr` with new numbers of registers, buffers or kernels, and new bodies.

    `moves` maps "r", "b" and "k" to functions from old to new numbers of registers, buffers and
    kernels. `body` is applied to each body.
    """

    def number(kind: Kind, value: Any) -> Any:
        if kind is Kind.BODY:
            return body(value)
        return moves[kind.letter](value) if kind.letter in moves and value != kind.absent else value

    def moved(field: Field) -> Any:
        value = getattr(instr, field.name)
        match field.form:
            case FieldCount.MANY:
                return tuple(number(field.kind, item) for item in value)
            case FieldCount.TENSORS:
                return tuple(
                    replace(
                        ref,
                        buffer=number(field.kind, ref.buffer),
                        dims=tuple(number(Kind.USED, register) for register in ref.dims),
                    )
                    for ref in value
                )
            case FieldCount.ONE:
                return number(field.kind, value)

    return replace(instr, **{field.name: moved(field) for field in row_of(instr).fields})
