"""Starts collectives as early, and waits for them as late, as the uses of their buffers allow.

    launch a; launch b; start sum(a); wait sum(a); launch c; launch d(sum(a))
 -> launch a; start sum(a); launch b; launch c; wait sum(a); launch d(sum(a))

Requires a program whose arena is not planned yet, with a wait directly after each collective.
Starts keep their order among each other, and so do waits, in a body and with respect to the bodies
inside it.  All other instructions keep their order.  So a collective whose result the next kernel
reads is waited for at once.
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
    """Returns `program` with collectives that start earlier and are waited for later.

    A ticket links a start to its wait.  Collectives that overlap get different tickets.
    """
    if not any(isinstance(i, Collective) for i in walk_instructions(program.body)):
        return program
    shared = shared_memory(program)

    def may_pass(instr: Instr, other: Instr) -> bool:
        nested = tuple(walk_instructions((other,)))
        # A check may refuse the counts of a collective: it must not start before that check.
        barriers = (type(instr), Check) if len(used_registers(instr)) > 1 else type(instr)
        defined = {register for i in nested for register in defined_registers(i)}
        return (
            not any(isinstance(i, barriers) for i in nested)
            and used_registers(instr).isdisjoint(defined)
            and not any(memory_of(instr, shared) & memory_of(i, shared) for i in nested)
        )

    return replace(program, body=_separated(program.body, may_pass, ()))


def _separated(
    body: Body, may_pass: Callable[[Instr, Instr], bool], outer_tickets: Sequence[int]
) -> Body:
    """Returns `body` with each start moved up and each wait moved down as far as possible.

    `may_pass(a, b)` returns True if `a` may change places with its neighbour `b`.  `outer_tickets`
    are the tickets of collectives that are in progress while the body runs.
    """
    raised = _moved_up(body, Collective, may_pass)
    lowered = reversed(_moved_up(reversed(raised), Wait, may_pass))
    # The tickets of started collectives. Waits have the order of starts, so the first ends first.
    flying: list[int] = []
    separated: list[Instr] = []
    for instr in lowered:
        if isinstance(instr, Collective):
            ticket = next(t for t in count() if t not in (*outer_tickets, *flying))
            flying.append(ticket)
            separated.append(replace(instr, ticket=ticket))
        elif isinstance(instr, Wait):
            separated.append(replace(instr, ticket=flying.pop(0)))
        else:
            inner = partial(_separated, may_pass=may_pass, outer_tickets=(*outer_tickets, *flying))
            separated.append(renumbered(instr, {}, inner))
    return tuple(separated)


def _moved_up(
    instrs: Iterable[Instr], kind: type[Instr], may_pass: Callable[[Instr, Instr], bool]
) -> list[Instr]:
    """Returns `instrs` with instructions of type `kind` moved as far to the front as allowed."""
    ordered: list[Instr] = []
    for instr in instrs:
        at = len(ordered)
        while isinstance(instr, kind) and at and may_pass(instr, ordered[at - 1]):
            at -= 1
        ordered.insert(at, instr)
    return ordered
