"""Collectives start as early, and are waited for as late, as what touches their buffers allows.

    launch a; launch b; start sum(a); wait sum(a); launch c; launch d(sum(a))
 -> launch a; start sum(a); launch b; launch c; wait sum(a); launch d(sum(a))

Requires a program whose arena is not planned yet, with a wait behind each collective.  Starts keep
their order, and waits do, within a body and beside the bodies in it.  All else stays where it is: a
collective that the next kernel needs is waited for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from tcc.ir.program import Body, Check, Collective, Instr, Program, Wait
from tcc.ir.program.operands import (
    defined_registers,
    memory_of,
    renumbered,
    shared_memory,
    used_registers,
    walk_instructions,
)


def overlap_collectives(program: Program) -> Program:
    """`program` with starts and waits apart, and tickets of their own for what is under way."""
    if not any(isinstance(i, Collective) for i in walk_instructions(program.body)):
        return program
    shared = shared_memory(program)

    def may_pass(moved: Instr, other: Instr) -> bool:
        inside = tuple(walk_instructions((other,)))
        # a rank whose counts are refused has not begun
        barriers = (type(moved), Check) if len(used_registers(moved)) > 1 else type(moved)
        made = {register for instr in inside for register in defined_registers(instr)}
        return (
            not any(isinstance(instr, barriers) for instr in inside)
            and used_registers(moved).isdisjoint(made)
            and not any(memory_of(moved, shared) & memory_of(i, shared) for i in inside)
        )

    return replace(program, body=_apart(program.body, may_pass, ()))


def _apart(body: Body, may_pass: Callable[[Instr, Instr], bool], held: Sequence[int]) -> Body:
    """`held` are the tickets of what is under way around `body`."""
    raised = _moved(body, Collective, may_pass)
    lowered = reversed(_moved(reversed(raised), Wait, may_pass))
    flying: list[int] = []  # in the order of starts, which is that of waits
    found: list[Instr] = []
    for instr in lowered:
        if isinstance(instr, Collective):
            ticket = next(t for t in count() if t not in (*held, *flying))
            flying.append(ticket)
            found.append(replace(instr, ticket=ticket))
        elif isinstance(instr, Wait):
            found.append(replace(instr, ticket=flying.pop(0)))
        else:
            inner = partial(_apart, may_pass=may_pass, held=(*held, *flying))
            found.append(renumbered(instr, {}, inner))
    return tuple(found)


def _moved(
    instrs: Iterable[Instr], kind: type[Instr], may_pass: Callable[[Instr, Instr], bool]
) -> list[Instr]:
    """Those of `kind` as far to the front as they may."""
    found: list[Instr] = []
    for instr in instrs:
        at = len(found)
        while isinstance(instr, kind) and at and may_pass(instr, found[at - 1]):
            at -= 1
        found.insert(at, instr)
    return found
