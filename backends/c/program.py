"""A host program as one C function: straight statements, constants in place of known registers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from tcc.backends.c.calls import call_lines
from tcc.backends.c.kernel import KernelFunction
from tcc.backends.c.storage import Storage
from tcc.backends.c.types import memory_type
from tcc.errors import InternalError
from tcc.ir.program import (
    Allocate,
    Branch,
    BufferId,
    CallOp,
    Check,
    Copy,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Program,
    ReadInt,
    Register,
    Relation,
    View,
)
from tcc.ir.program.operands import defined_registers, walk_instructions
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import DTypeKind

_OPERATORS = {IntOp.ADD: "+", IntOp.SUB: "-", IntOp.MUL: "*"}
_FUNCTIONS = {
    IntOp.FLOORDIV: "floor_div",
    IntOp.MOD: "floor_mod",
    IntOp.MIN: "min_i64",
    IntOp.MAX: "max_i64",
}
_AIM = re.compile(r" *(part_\w+) = \(")
_RELATIONS = {Relation.EQ: "==", Relation.LE: "<=", Relation.LT: "<"}


def known_registers(program: Program) -> dict[Register, int]:
    """The values of registers that are the same in every run, where all inputs have known sizes."""
    body = list(walk_instructions(program.body))
    times = Counter(register for instr in body for register in defined_registers(instr))
    lets = {i.target: i for i in body if isinstance(i, Let) and times[i.target] == 1}
    known: dict[Register, int] = {}

    def value(register: Register) -> int | None:
        if register not in known and register in lets:
            found = _folded(lets[register], program, value)
            if found is not None:
                known[register] = found
        return known.get(register)

    for register in lets:
        value(register)
    return known


def _folded(let: Let, program: Program, value: Callable[[int], int | None]) -> int | None:
    if let.op is IntOp.CONST:
        return let.a
    if let.op is IntOp.DIM:
        return value(program.inputs[let.a].dims[let.b])
    a, b = value(let.a), value(let.b)
    if a is None or b is None:
        return None
    match let.op:
        case IntOp.ADD:
            return a + b
        case IntOp.SUB:
            return a - b
        case IntOp.MUL:
            return a * b
        case IntOp.FLOORDIV:
            return a // b
        case IntOp.MOD:
            return a % b
        case IntOp.MIN:
            return min(a, b)
        case IntOp.MAX:
            return max(a, b)
    raise InternalError(f"no value of {let}")


class ProgramPrinter:
    """The statements of a program; `messages` are those of its checks, by the number that the
    function returns, from one on; `room` is what called functions need for temporaries."""

    def __init__(
        self,
        program: Program,
        storage: Storage,
        kernels: Sequence[TileKernel],
        functions: Sequence[KernelFunction],
        names: Sequence[str],
        known: Mapping[Register, int],
    ) -> None:
        self._program, self._storage, self._known = program, storage, known
        self._kernels, self._functions, self._names = kernels, functions, names
        self._lines: list[str] = []
        self._depth = 1
        self._defined: set[Register] = set()
        self.messages: list[str] = []
        self.room = 0
        self.called: set[str] = set()

    def lines(self) -> list[str]:
        """Everything inside the function's braces."""
        self._body(self._program.body)
        self._lines = self._without_unused_views()
        text = "\n".join(self._lines)
        declared = [
            f"    int64_t r{register} = 0;"
            for register in sorted(self._defined)
            if f"r{register}" in text
        ]
        return [*declared, *self._storage.pointers, *self._lines, "    return 0;"]

    def _without_unused_views(self) -> list[str]:
        """The lines, without those that aim a pointer which no other line has."""
        counts = Counter(re.findall(r"\w+", "\n".join(self._lines)))
        aims = Counter(m[1] for line in self._lines if (m := _AIM.match(line)))
        idle = {name for name, times in aims.items() if counts[name] == times}
        if not idle:
            return self._lines
        kept = [n for n in self._storage.pointers if not idle.intersection(re.findall(r"\w+", n))]
        self._storage.pointers = kept
        self._lines = [n for n in self._lines if not ((m := _AIM.match(n)) and m[1] in idle)]
        return self._without_unused_views()

    def _body(self, body: Sequence[Instr]) -> None:
        for instr in body:
            self._instruction(instr)

    def _instruction(self, instr: Instr) -> None:
        match instr:
            case Let():
                self._let(instr)
            case ReadInt():
                self._read(instr)
            case Check():
                self._check(instr)
            case Allocate():
                pass  # it has its memory
            case View():
                self._view(instr)
            case Launch():
                self._launch(instr)
            case CallOp():
                self._call(instr)
            case Copy():
                a, b = self._storage.names[instr.target], self._storage.names[instr.source]
                self._line(f"memmove({a}, {b}, (size_t){self._value(instr.size)});")
            case Branch():
                self._branch(instr)
            case Loop():
                self._loop(instr)
            case _:
                assert_never(instr)

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _value(self, register: Register) -> str:
        known = self._known.get(register)
        return f"r{register}" if known is None else str(known)

    def _define(self, register: Register) -> str:
        self._defined.add(register)
        return f"r{register}"

    def _let(self, let: Let) -> None:
        if let.target in self._known:
            return
        target = self._define(let.target)
        if let.op is IntOp.CONST:
            self._line(f"{target} = {let.a};")
            return
        a, b = self._value(let.a), self._value(let.b)
        if let.op in _OPERATORS:
            self._line(f"{target} = {a} {_OPERATORS[let.op]} {b};")
        else:
            self._line(f"{target} = {_FUNCTIONS[let.op]}({a}, {b});")

    def _read(self, instr: ReadInt) -> None:
        place = self._element(instr.buffer, instr.element, memory_type(instr.dtype))
        if instr.dtype.kind is DTypeKind.BOOL:
            place = f"{place} != 0"
        self._line(f"{self._define(instr.target)} = (int64_t)({place});")

    def _element(self, buffer: BufferId, element: int, kind: str) -> str:
        name = self._storage.names[buffer]
        cast = "" if self._storage.types[buffer] == kind else f"(const {kind} *)"
        return f"({cast}({name}))[{element}]" if cast or " " in name else f"{name}[{element}]"

    def _check(self, check: Check) -> None:
        a, b = self._known.get(check.a), self._known.get(check.b)
        if a is not None and b is not None and _holds(check.relation, a, b):
            return
        left, right = self._value(check.a), self._value(check.b)
        holds = f"{left} {_RELATIONS.get(check.relation)} {right}"
        if check.relation is Relation.DIVIDES:
            holds = f"{left} > 0 && {right} % {left} == 0"
        self._fail(f"!({holds})", check.message)

    def _fail(self, condition: str, message: str) -> None:
        self.messages.append(message)
        self._line(f"if ({condition}) return {len(self.messages)};")

    def _view(self, view: View) -> None:
        storage = self._storage
        if view.buffer not in storage.names or view.base not in storage.names:
            return
        const = "const " if view.buffer in storage.constant else ""
        kind, base = storage.types[view.buffer], storage.names[view.base]
        place = f"(const char *)({base}) + {self._value(view.offset)}"
        if not const:
            place = f"(char *)({base}) + {self._value(view.offset)}"
        self._line(f"{storage.names[view.buffer]} = ({const}{kind} *)(void *)({place});")

    def _launch(self, launch: Launch) -> None:
        kernel, function = self._kernels[launch.kernel], self._functions[launch.kernel]
        args = []
        for place in function.buffers:
            number, taken = launch.buffers[place], kernel.buffers[place]
            kind, name = memory_type(taken.dtype), self._storage.names[number]
            if kind != self._storage.types[number]:
                const = "const " if taken.scope is MemorySpace.INPUT else ""
                name = f"({const}{kind} *)({name})"
            args.append(name)
        args += [self._value(launch.ints[n]) for n in function.sizes]
        self._line(f"{self._names[launch.kernel]}({', '.join(args)});")

    def _call(self, call: CallOp) -> None:
        lines, room = call_lines(call, self._storage, self._value)
        self.room = max(self.room, room)
        for line in lines:
            self._line(line)
        self._depth += 1
        self._fail(f"tcc_op_{call_name(call)}(&call) != TCC_OK", f"{call.op} refuses its operands")
        for n, register in enumerate(call.results):
            self._line(f"{self._define(register)} = results[{n}];")
        self._depth -= 1
        self._line("}")

    def _condition(self, buffer: BufferId) -> str:
        return f"{self._element(buffer, 0, 'uint8_t')} != 0"

    def _branch(self, branch: Branch) -> None:
        sized = branch.condition < 0
        taken = f"{self._value(branch.when)} != 0" if sized else self._condition(branch.condition)
        self._line(f"if ({taken}) {{")
        self._inside(branch.then)
        if branch.otherwise:
            self._line("} else {")
            self._inside(branch.otherwise)
        self._line("}")

    def _inside(self, body: Sequence[Instr]) -> None:
        self._depth += 1
        self._body(body)
        self._depth -= 1

    def _loop(self, loop: Loop) -> None:
        counter = self._define(loop.counter)
        trips = self._value(loop.trips)
        self._line(f"for ({counter} = 0; {counter} < {trips}; {counter}++) {{")
        if loop.condition >= 0:
            self._line(f"    if (!({self._condition(loop.condition)})) break;")
        self._inside(loop.body)
        self._line("}")


def call_name(call: CallOp) -> str:
    """The end of the C function's name."""
    return call.op.replace("non_max_suppression", "nms")


def _holds(relation: Relation, a: int, b: int) -> bool:
    match relation:
        case Relation.EQ:
            return a == b
        case Relation.LE:
            return a <= b
        case Relation.LT:
            return a < b
        case Relation.DIVIDES:
            return a > 0 and b % a == 0
