"""Proves that all ranks which run a program issue the same collectives in the same order.

A value is *equal on all ranks* where only such values decide it: sizes of inputs, weights, results
of all_reduce, all_gather and broadcast.  What else an input holds may differ.  No collective stands
under a condition or trip count that may differ.  That inputs have equal sizes on all ranks is the
callers' promise; where they break it the comm reports a mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tcc.errors import UserError
from tcc.ir.program import (
    Body,
    Branch,
    BufferId,
    Collective,
    Input,
    Launch,
    Loop,
    Output,
    Program,
    Register,
    View,
)
from tcc.ir.program.operands import bodies_of, operands, walk_instructions
from tcc.ir.program.table import Kind

_Value: TypeAlias = tuple[str, Register | BufferId]
_MADE = (Kind.DEFINED, Kind.WRITTEN, Kind.AIMED)


def check_lockstep(program: Program, results: Sequence[Sequence[int]]) -> None:
    """Raises UserError where a collective stands under what may differ between ranks; `results`
    are the positions of each kernel's results among its buffers."""
    if any(isinstance(i, Collective) for i in walk_instructions(program.body)):
        found = _Differing(program, results)
        while found.spread(program.body, under=False):
            pass
        found.check(program.body)


@dataclass
class _Differing:
    """The registers and buffers that may differ between ranks, at any time of the run."""

    program: Program
    results: Sequence[Sequence[int]]
    values: set[_Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        for number, buffer in enumerate(self.program.buffers):
            match buffer.place:
                case Input():
                    self.values.add(("b", number))
                case Output(port) if self.program.outputs[port].state >= 0:
                    self.values.add(("b", number))
                case _:
                    pass

    def spread(self, body: Body, *, under: bool) -> bool:
        """Adds what instructions make of differing values, or `under` a differing condition;
        whether anything was added."""
        before = len(self.values)
        for instr in body:
            read = [(k.letter, v) for k, v in operands(instr) if k.letter and k not in _MADE]
            made = [(k.letter, v) for k, v in operands(instr) if k in _MADE]
            match instr:
                case Launch():
                    made = [("b", instr.buffers[n]) for n in self.results[instr.kernel]]
                    read = [value for value in read if value not in made]
                    read += [v for v in made if instr.buffers.count(v[1]) > 1]
                case Collective() if not instr.kind.sends_blocks:
                    read = [("r", instr.count)]
                case Collective():
                    self.values.add(("b", instr.receive))
                case View():  # both are one memory
                    made.append(("b", instr.base))
                    read += made
                case _:
                    pass
            differs = under or not self.values.isdisjoint(read)
            if differs:
                self.values.update(made)
            for inner in bodies_of(instr):
                self.spread(inner, under=differs)
        return len(self.values) > before

    def check(self, body: Body) -> None:
        for instr in body:
            if isinstance(instr, Branch | Loop):
                inner = [i for part in bodies_of(instr) for i in walk_instructions(part)]
                first = next((i for i in inner if isinstance(i, Collective)), None)
                control = [(k.letter, v) for k, v in operands(instr) if k.letter in ("b", "r")]
                if first is not None and not self.values.isdisjoint(control):
                    raise self._refusal(first, instr)
            for part in bodies_of(instr):
                self.check(part)

    def _refusal(self, collective: Collective, under: Branch | Loop) -> UserError:
        condition = ("b", under.condition) in self.values
        label = self.program.buffers[under.condition].label if condition else ""
        return UserError(
            "ranks may issue different collectives",
            where=f"{collective.kind.name.lower()} of "
            f"{self.program.buffers[collective.send].label or 'a value'}",
            why=f"it stands in a {type(under).__name__.lower()} whose "
            f"{f'condition {label}' if label else 'condition or number of trips'} "
            "may differ between ranks",
            hint="compute the condition from results of all_reduce, all_gather or broadcast",
        )
