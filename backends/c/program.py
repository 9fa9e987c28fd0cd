"""Prints a host program as a C function; registers with known values become constants."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from tcc.backends.c.calls import call_lines
from tcc.backends.c.kernel import KernelFunction
from tcc.backends.c.lines import Lines
from tcc.backends.c.storage import CStorage
from tcc.backends.c.types import stored_as, value_type
from tcc.errors import InternalError
from tcc.ir.program import (
    Allocate,
    Branch,
    BufferId,
    CallOp,
    Check,
    Collective,
    Copy,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    PlanArena,
    Program,
    ReadInt,
    Register,
    Relation,
    View,
    Wait,
    constant_registers,
)
from tcc.ir.program.arithmetic import MEANING, let_values
from tcc.ir.program.operands import defined_registers, walk_instructions
from tcc.ir.tile import MemorySpace
from tcc.ir.types import BOOL, U8, DType

_LETS = {
    IntOp.CONST: "{}",
    IntOp.ADD: "{} + {}",
    IntOp.SUB: "{} - {}",
    IntOp.MUL: "{} * {}",
    IntOp.FLOORDIV: "floor_div({}, {})",
    IntOp.MOD: "floor_mod({}, {})",
    IntOp.MIN: "min_i64({}, {})",
    IntOp.MAX: "max_i64({}, {})",
    IntOp.SEED: "run_seed",
}
_RELATIONS = {
    Relation.EQ: "{} == {}",
    Relation.LE: "{} <= {}",
    Relation.LT: "{} < {}",
    Relation.DIVIDES: "{0} > 0 && {1} % {0} == 0",
}


def known_registers(program: Program) -> dict[Register, int]:
    """Returns the value of each register that has the same value in all runs.

    The sizes of all inputs must be constants of the program.
    """
    constants = constant_registers(program)
    ports = enumerate(program.inputs)
    dims = {(n, axis): constants[dim] for n, port in ports for axis, dim in enumerate(port.dims)}
    body = list(walk_instructions(program.body))
    times = Counter(register for instr in body for register in defined_registers(instr))
    once = (i for i in body if isinstance(i, Let) and times[i.target] == 1)
    return let_values(once, dims)


class ProgramPrinter(Lines):
    """Prints the statements of a program as C.

    `messages[n]` is the message of the check that makes the function return n + 1. `room` is the
    number of bytes that called functions need as temporary memory. `draws`: the program draws
    random numbers, from the variable `seed`.
    """

    def __init__(
        self,
        program: Program,
        storage: CStorage,
        functions: Sequence[KernelFunction],
        registers: Mapping[Register, int],
        seed: str,
    ) -> None:
        super().__init__()
        self._program, self._storage, self._known = program, storage, registers
        self._functions = functions
        self._defined: set[Register] = set()
        self.messages: list[str] = []
        self.room = 0
        seeds = (isinstance(i, Let) and i.op is IntOp.SEED for i in walk_instructions(program.body))
        self.draws, self._seed = any(seeds), seed

    def lines(self) -> list[str]:
        """Returns the lines inside the function's braces."""
        self._body(self._program.body)
        text = "\n".join(self._lines)
        declarations = [
            f"    int64_t r{register} = 0;"
            for register in sorted(self._defined)
            if f"r{register}" in text
        ]
        seed_lines = [f"    const int64_t run_seed = (int64_t){self._seed}++;"] * self.draws
        return [*seed_lines, *declarations, *self._storage.pointers, *self._lines, "    return 0;"]

    def _statement(self, instr: Instr) -> None:
        match instr:
            case Let():
                self._let(instr)
            case ReadInt():
                self._read(instr)
            case Check():
                self._check(instr)
            case Allocate():
                pass  # buffers are static arrays, which need no allocation
            case View():
                self._view(instr)
            case Launch():
                self._launch(instr)
            case CallOp():
                self._call(instr)
            case Copy():
                a, b = self._storage.names[instr.target], self._storage.names[instr.source]
                self._line(f"memmove({a}, {b}, (size_t){self._value(instr.size)});")
            case Branch(condition=buffer):
                sized = buffer < 0
                condition = f"{self._value(instr.when)} != 0" if sized else self._condition(buffer)
                self._if(condition, instr.then, instr.otherwise)
            case Loop():
                self._loop(instr)
            case PlanArena() | Collective() | Wait():
                raise InternalError("no C file has this instruction", where=str(instr))
            case _:
                assert_never(instr)

    def _value(self, register: Register) -> str:
        value = self._known.get(register)
        return f"r{register}" if value is None else str(value)

    def _define(self, register: Register) -> str:
        self._defined.add(register)
        return f"r{register}"

    def _let(self, let: Let) -> None:
        if let.target in self._known:
            return
        constant = let.op is IntOp.CONST
        a, b = (let.a, 0) if constant else (self._value(let.a), self._value(let.b))
        self._line(f"{self._define(let.target)} = {_LETS[let.op].format(a, b)};")

    def _read(self, instr: ReadInt) -> None:
        place = self._element(instr.buffer, instr.element, stored_as(instr.dtype))
        if instr.dtype is BOOL:
            place = f"{place} != 0"
        self._line(f"{self._define(instr.target)} = (int64_t)({place});")

    def _element(self, buffer: BufferId, element: int, dtype: DType) -> str:
        name = self._storage.names[buffer]
        is_same_type = self._storage.types[buffer] is dtype
        cast = "" if is_same_type else f"(const {value_type(dtype)} *)"
        return f"({cast}({name}))[{element}]" if cast or " " in name else f"{name}[{element}]"

    def _check(self, check: Check) -> None:
        a, b = self._known.get(check.a), self._known.get(check.b)
        if a is None or b is None or not MEANING[check.relation](a, b):
            values = self._value(check.a), self._value(check.b)
            self._fail(f"!({_RELATIONS[check.relation].format(*values)})", check.message)

    def _fail(self, condition: str, message: str) -> None:
        self.messages.append(message)
        self._line(f"if ({condition}) return {len(self.messages)};")

    def _view(self, view: View) -> None:
        storage = self._storage
        if view.buffer not in storage.names:
            return  # no instruction uses the view, so it has no C variable
        const = "const " if view.buffer in storage.constant else ""
        place = f"({const}char *)({storage.names[view.base]}) + {self._value(view.offset)}"
        kind = value_type(storage.types[view.buffer])
        self._line(f"{storage.names[view.buffer]} = ({const}{kind} *)(void *)({place});")

    def _launch(self, launch: Launch) -> None:
        function, args = self._functions[launch.kernel], []
        for place, parameter in function.buffers:
            number, dtype = launch.buffers[place], stored_as(parameter.dtype)
            name = self._storage.names[number]
            if dtype is not self._storage.types[number]:
                const = "const " if parameter.scope is MemorySpace.INPUT else ""
                name = f"({const}{value_type(dtype)} *)({name})"
            args.append(name)
        args += [self._value(launch.ints[n]) for n in function.sizes]
        self._line(f"{function.name}({', '.join(args)});")

    def _call(self, call: CallOp) -> None:
        lines, room = call_lines(call, self._storage, self._value)
        self.room = max(self.room, room)
        name = call.op.replace("non_max_suppression", "nms")
        with self._braces():
            for line in lines:
                self._line(line)
            self._fail(f"tcc_op_{name}(&call) != TCC_OK", f"{call.op} refuses its operands")
            for n, register in enumerate(call.results):
                self._line(f"{self._define(register)} = results[{n}];")

    def _condition(self, buffer: BufferId) -> str:
        return f"{self._element(buffer, 0, U8)} != 0"

    def _loop(self, loop: Loop) -> None:
        counter, trips = self._define(loop.counter), self._value(loop.trips)
        with self._braces(f"for ({counter} = 0; {counter} < {trips}; {counter}++)"):
            if loop.condition >= 0:
                self._line(f"if (!({self._condition(loop.condition)})) break;")
            self._body(loop.body)
