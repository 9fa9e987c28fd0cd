"""A parsed kernel as operations on strands: a table of known forms gives each its operation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown
from tests.lib.emulator.memory import UNSIGNED

from .machine import LANES, Machine, Strand
from .numbers import TYPES
from .parse import Address, Instruction, Kernel, Name, Number, Operand, Several
from .shared import BASE

Array = np.ndarray[Any, np.dtype[Any]]
Read: TypeAlias = Callable[[Machine, Strand, "Array | None"], Array]
Write: TypeAlias = Callable[[Machine, Strand, Array, "Array | None"], None]
# True means that the caller no longer owns the strand.
Body: TypeAlias = Callable[[Machine, Strand, "Array | None"], "bool | None"]
Operation: TypeAlias = Callable[[Machine, Strand], "bool | None"]
Maker: TypeAlias = Callable[["Program", Instruction, "re.Match[str]"], Body]
Check: TypeAlias = Callable[[Machine], None]

_FORMS: list[tuple[re.Pattern[str], Maker]] = []
_CHECKS: list[Check] = []


def form(pattern: str) -> Callable[[Maker], Maker]:
    """Registers the decorated function as the maker of opcodes that fully match `pattern`."""

    def add(maker: Maker) -> Maker:
        _FORMS.append((re.compile(pattern), maker))
        return maker

    return add


def at_end(check: Check) -> Check:
    """Registers the decorated function as a check of blocks that have ended."""
    _CHECKS.append(check)
    return check


@cache
def _maker(opcode: str) -> tuple[Maker, re.Match[str]] | None:
    """Returns the first form that matches an opcode."""
    for pattern, maker in _FORMS:
        if match := pattern.fullmatch(opcode):
            return maker, match
    return None


class Program:
    """A kernel's operations, and the names that they refer to."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.name, self.registers = kernel, kernel.name, kernel.registers
        self.at_end = _CHECKS
        self._numbers = {name: n for n, name in enumerate(kernel.registers)}
        self.opcodes = [instruction.opcode for instruction in kernel.code]
        self.texts = [instruction.text for instruction in kernel.code] + ["the end"]
        self.grain = min((self._stored(instruction) for instruction in kernel.code), default=4)
        self.tracked = self._registers_of_products()
        self.code = [self._operation(instruction) for instruction in kernel.code]
        self.code.append(_run_over)

    @staticmethod
    def _stored(instruction: Instruction) -> int:
        """Returns the width in bytes of an instruction's store to shared memory, at most 4."""
        narrow = re.match(r"st\.(?:volatile\.)?shared\b.*b(8|16)$", instruction.opcode)
        return int(narrow[1]) // 8 if narrow else 4

    def _registers_of_products(self) -> frozenset[str]:
        """Returns the registers that asynchronous matmuls read or write."""
        names = set[str]()
        for instruction in self.kernel.code:
            if instruction.opcode.startswith("wgmma.mma_async"):
                names |= {name for name in _names(instruction.operands) if name in self.registers}
        return frozenset(names)

    def _operation(self, instruction: Instruction) -> Operation:
        entry = _maker(instruction.opcode)
        if entry is None:
            raise Unknown(f"instruction {instruction.text}")
        maker, match = entry
        body = self._watched(instruction, maker(self, instruction, match))
        if instruction.guard is None:
            return lambda m, s: body(m, s, s.lanes)
        return _guarded(self.read(instruction.guard, "pred"), body)

    def _watched(self, instruction: Instruction, body: Body) -> Body:
        """Adds a check that no pending matmul uses the instruction's registers."""
        if instruction.opcode.startswith("wgmma"):
            return body
        touched = sorted(self.tracked & set(_names(instruction.operands)))
        if not touched:
            return body

        def watched(m: Machine, s: Strand, active: Array | None) -> bool | None:
            m.state["products"].touch(s, touched)
            return body(m, s, active)

        return watched

    # ---- operands -------------------------------------------------------------------------------

    def register(self, operand: Operand) -> int:
        if not isinstance(operand, Name) or operand.text not in self._numbers:
            raise Unknown(f"operand {operand} instead of a register")
        return self._numbers[operand.text]

    def read(self, operand: Operand, kind: str) -> Read:
        """Returns a function that reads the operand as `kind`: an array that broadcasts to [warp,
        lane]."""
        if isinstance(operand, Number):
            return _constant(_literal(operand, kind))
        if not isinstance(operand, Name):
            raise Unknown(f"operand {operand}")
        if operand.text in self._numbers:
            return self._read_register(operand, kind)
        if operand.text.startswith("%"):
            return _special(operand.text, kind)
        return _constant(np.array([[self.symbol(operand.text)]], TYPES[kind]))

    def symbol(self, name: str) -> int:
        if name in self.kernel.shared:
            return BASE + self.kernel.shared[name]
        if name in self.kernel.parameters:
            return self.kernel.parameters[name].offset
        raise Unknown(f"symbol {name}")

    def _read_register(self, operand: Name, kind: str) -> Read:
        number, dtype = self._numbers[operand.text], np.dtype(TYPES[kind])
        width, negated = self.registers[operand.text], operand.negated
        is_same_width = not width or width == dtype.itemsize
        if width and width < dtype.itemsize:
            raise Unknown(f"{operand.text} as {kind}")

        def read(m: Machine, s: Strand, active: Array | None) -> Array:
            register = m.registers[number]
            if s.bits & ~register.known:
                register.check(s, active)
            value = register.value[s.at]
            if negated:
                return ~value
            if is_same_width:
                return value.view(dtype)
            return value.astype(UNSIGNED[dtype.itemsize]).view(dtype)

        return read

    def write(self, operand: Operand, kind: str) -> Write:
        """Returns a function that writes the operand; narrow values get sign or zero extension."""
        if operand == Name("_"):
            return lambda m, s, values, active: None
        number = self.register(operand)
        assert isinstance(operand, Name)
        width = self.registers[operand.text]
        if not width:
            return lambda m, s, values, active: m.registers[number].write(s, values, active)
        signed = kind[0] == "s"
        extended = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[width] if signed else None

        def write(m: Machine, s: Strand, values: Array, active: Array | None) -> None:
            size = values.dtype.itemsize
            if size < width and extended:
                values = values.astype(extended)
            bits = np.ascontiguousarray(values).view(UNSIGNED[values.dtype.itemsize])
            m.registers[number].write(s, bits.astype(UNSIGNED[width], copy=False), active)

        return write

    def address(self, operand: Operand, kind: str) -> Read:
        """Returns a function that computes the address `[base+offset]` as int64."""
        if not isinstance(operand, Address):
            raise Unknown(f"operand {operand} instead of an address")
        base, offset = self.read(operand.base, kind), operand.offset
        return lambda m, s, active: base(m, s, active).astype(np.int64) + offset

    def label(self, operand: Operand) -> int:
        assert isinstance(operand, Name)
        return self.kernel.labels[operand.text]


def parts(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Several) else (operand,)


def _names(operands: tuple[Operand, ...]) -> list[str]:
    names: list[str] = []
    for operand in operands:
        match operand:
            case Name(text):
                names.append(text)
            case Several(inner):
                names += _names(inner)
            case Address(base, _, at):
                names += _names((base, *at))
    return names


def _literal(operand: Number, kind: str) -> Array:
    dtype = np.dtype(TYPES[kind])
    if kind == "pred":
        return np.array([[operand.value != 0]])
    if operand.width and operand.width != dtype.itemsize:
        raise Unknown(f"a literal of {operand.width} bytes as {kind}")
    bits = operand.value & ((1 << 8 * dtype.itemsize) - 1)
    return np.array([[bits]], UNSIGNED[dtype.itemsize]).view(dtype)


def _constant(value: Array) -> Read:
    return lambda m, s, active: value


def _special(name: str, kind: str) -> Read:
    dtype = TYPES[kind]

    def thread(m: Machine, s: Strand) -> Any:
        return (s.rows % m.warps * LANES)[:, None] + np.arange(LANES)

    readers: dict[str, Callable[[Machine, Strand], Any]] = {
        "%tid.x": thread,
        "%laneid": lambda m, s: np.arange(LANES)[None],
        "%ctaid.x": lambda m, s: np.array(m.blocks)[m.block_of[s.rows]][:, None],
        "%nctaid.x": lambda m, s: np.array([[m.launch.blocks]]),
        "%ntid.x": lambda m, s: np.array([[m.launch.threads]]),
    }
    for axis in "yz":
        readers |= {f"%{base}.{axis}": lambda m, s: np.array([[0]]) for base in ("tid", "ctaid")}
        readers |= {f"%{base}.{axis}": lambda m, s: np.array([[1]]) for base in ("ntid", "nctaid")}
    if name not in readers:
        raise Unknown(f"special register {name}")
    read = readers[name]
    return lambda m, s, active: read(m, s).astype(dtype)


def _guarded(guard: Read, body: Body) -> Operation:
    def operation(m: Machine, s: Strand) -> bool | None:
        active = guard(m, s, s.lanes)
        if s.lanes is not None:
            active = active & s.lanes
        elif active.all():
            return body(m, s, None)
        return body(m, s, active) if active.any() else None

    return operation


def whole(s: Strand, active: Array | None) -> None:
    """Raises Fault unless all lanes of the warps are active."""
    if active is not None and not active.all():
        raise Fault("not all lanes of a warp take part")


def _run_over(m: Machine, s: Strand) -> bool:
    raise Fault("the code goes on behind its end")


# ---- control ------------------------------------------------------------------------------------


@form(r"bra(\.uni)?")
def _bra(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    target = p.label(i.operands[0])

    def body(m: Machine, s: Strand, active: Array | None) -> bool | None:
        if active is None or (s.lanes is not None and (active == s.lanes).all()):
            s.pc = target
            return None
        return m.divide(s, active, target)

    return body


@form(r"brx\.idx(\.uni)?")
def _brx(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    index = p.read(i.operands[0], "u32")
    assert isinstance(i.operands[1], Name)
    targets = [p.kernel.labels[name] for name in p.kernel.tables[i.operands[1].text]]

    def body(m: Machine, s: Strand, active: Array | None) -> bool:
        targets_of_lanes = np.broadcast_to(index(m, s, active), (len(s.rows), LANES))
        if (targets_of_lanes >= len(targets)).any():
            raise Fault(f"there is no target {int(targets_of_lanes.max())}")
        for number in np.unique(targets_of_lanes if active is None else targets_of_lanes[active]):
            lanes = np.zeros((len(m.block_of), LANES), np.bool_)
            lanes[s.rows] = (targets_of_lanes == number) & (True if active is None else active)
            m.ready.append(m.strand(lanes, targets[number]))
        return True

    return body


@form(r"ret")
def _ret(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> bool | None:
        if active is None or (s.lanes is not None and (active == s.lanes).all()):
            return True
        lanes_of_strand = np.ones(active.shape, np.bool_) if s.lanes is None else s.lanes
        lanes = np.zeros((len(m.block_of), LANES), np.bool_)
        lanes[s.rows] = lanes_of_strand & ~active
        m.ready.append(m.strand(lanes, s.pc))
        return True

    return body
