"""Proves that all ranks of a group issue the collectives of the group in the same order.

The comm counts as a group of all ranks.  The proof tracks which values may differ between ranks.
These values are equal on all ranks: the sizes of inputs, the weights, the results of all_reduce,
all_gather and broadcast on the ranks that take part, and all values that are computed from equal
values alone.  Elements of inputs, results of reduce_scatter and all_to_all, and the numbers of the
ranks may differ.  The proof fails if a collective is in a branch or loop whose condition or trip
count may differ between the ranks of its group.  Callers promise that inputs have equal sizes on
all ranks.  If they break the promise, the comm reports a mismatch.

Groups that share ranks cannot deadlock.  Every rank issues its collectives in program order, so no
rank of the earliest incomplete collective waits for a later collective.
"""

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
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    Program,
    Register,
    State,
    Wait,
)
from tcc.ir.program.operands import bodies_of, operands, shared_memory, walk_instructions
from tcc.ir.program.table import Kind

_Value: TypeAlias = tuple[str, Register | BufferId]
_RESULTS = (Kind.DEFINED, Kind.WRITTEN, Kind.AIMED)


def check_lockstep(program: Program, results: Sequence[Sequence[int]]) -> None:
    """Raises UserError if ranks may issue different collectives.

    `results[k]` has the positions of the results of kernel k among the buffers of its launches.
    """
    groups = (i.group for i in walk_instructions(program.body) if isinstance(i, Collective))
    for group in dict.fromkeys(groups):
        _Differing(program, results, group).check()


@dataclass
class _Differing:
    """The registers and buffers that may differ between ranks at one point of the program.

    The ranks are those of one group; group -1 has all ranks.
    """

    program: Program
    results: Sequence[Sequence[int]]
    group: int
    values: set[_Value] = field(default_factory=set)
    # For each buffer that shares memory, all buffers in this memory.
    shared: dict[_Value, set[_Value]] = field(default_factory=dict)

    def check(self) -> None:
        """Raises UserError if ranks of the group may issue different collectives.

        A run may read the state buffers that an earlier run has written, so the analysis of a run
        is repeated until the set of state buffers that may differ is stable.
        """
        for number, sharing in shared_memory(self.program).items():
            self.shared["b", number] = {("b", other) for other in sharing}
        states: set[_Value] = set()
        for number, buffer in enumerate(self.program.buffers):
            match buffer.place:
                case Input():
                    self.values.add(("b", number))
                case Output(port) if self.program.outputs[port].state >= 0:
                    self.values.add(("b", number))
                case State():
                    states.add(("b", number))
        previous: set[_Value] | None = None
        while self.values != previous:
            previous = set(self.values)
            self._run(self.program.body, under=False)
            self.values = previous | (self.values & states)

    def _run(self, body: Body, *, under: bool) -> None:
        """Propagates differences through `body`.

        With `under`, the ranks may not agree whether the body runs, so all its results may differ.
        """
        for instr in body:
            match instr:
                case Loop():
                    self._loop(instr, under=under)
                case Branch():
                    differs = self._decided(instr, under=under)
                    before, after_branches = self.values, set[_Value]()
                    for side in bodies_of(instr):
                        self.values = set(before)
                        self._run(side, under=differs)
                        after_branches |= self.values
                    self.values = after_branches
                case Collective():
                    counts, sends = {("r", n) for n in instr.counts}, instr.kind.sends_blocks
                    equal = not sends and self.values.isdisjoint(counts)
                    if under or not (equal and self._covered(instr.group)):
                        self._mark([("b", instr.receive)])
                    elif ("b", instr.receive) not in self.shared:
                        self.values.discard(("b", instr.receive))
                case Wait():
                    pass
                case Let(op=IntOp.RANK | IntOp.SEED):
                    self._mark([("r", instr.target)])
                case _:
                    operands_read, values_written = self._operands(instr)
                    if under or not self.values.isdisjoint(operands_read):
                        self._mark(values_written)

    def _covered(self, group: int) -> bool:
        """True if ranks that are in one list of `self.group` are also in one list of `group`.

        A collective of `group` then gives equal results to all ranks of a list of `self.group`.
        """
        if group in (-1, self.group):
            return True
        rank_lists = [frozenset(ranks) for ranks in self.program.groups[group].members]
        return self.group >= 0 and all(
            any(ranks.issuperset(part) for ranks in rank_lists)
            for part in self.program.groups[self.group].members
        )

    def _mark(self, values: Sequence[_Value]) -> None:
        for value in values:
            self.values |= self.shared.get(value, {value})

    def _loop(self, loop: Loop, *, under: bool) -> None:
        """Adds the differences that any number of trips may cause, zero trips included."""
        before: set[_Value] | None = None
        while self.values != before:
            before = set(self.values)
            self._run(loop.body, under=self._decided(loop, under=under))
            self.values |= before

    def _decided(self, instr: Branch | Loop, *, under: bool) -> bool:
        """True if ranks may take different paths through `instr`.

        Raises UserError if the bodies of `instr` then contain a collective of the group.
        """
        operands_read, values_written = self._operands(instr)
        if not (under or not self.values.isdisjoint(operands_read)):
            return False
        for inner in walk_instructions((instr,)):
            if isinstance(inner, Collective) and inner.group == self.group:
                raise self._refusal(inner, instr)
        self._mark(values_written)
        return True

    def _operands(self, instr: Instr) -> tuple[list[_Value], list[_Value]]:
        """Returns (operands, results): the values that an instruction itself reads and writes."""
        operands_read = [
            (k.letter, v) for k, v in operands(instr) if k.letter and k not in _RESULTS
        ]
        values_written = [(k.letter, v) for k, v in operands(instr) if k in _RESULTS]
        if isinstance(instr, Launch):
            values_written = [("b", instr.buffers[n]) for n in self.results[instr.kernel]]
        return operands_read, values_written

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
            hint="compute the condition from results of all_reduce, all_gather or broadcast of "
            "the same ranks",
        )
