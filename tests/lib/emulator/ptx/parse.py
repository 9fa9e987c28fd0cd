"""Parses PTX text into instructions: scopes, labels, operands. The parser knows no instruction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from tests.lib.emulator.faults import Unknown


@dataclass(frozen=True)
class Name:
    """A register, a special register, a symbol or a label; `negated` is true for predicates with
    `!`."""

    text: str
    negated: bool = False


@dataclass(frozen=True)
class Number:
    """A literal: an integer, or the bits of a float of `width` bytes."""

    value: int
    width: int = 0


@dataclass(frozen=True)
class Several:
    """`{a, b}`, or the two results `a|b`."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """`[base+offset]`, with coordinates `at` behind a tensor map."""

    base: Operand
    offset: int = 0
    at: tuple[Operand, ...] = ()


Operand: TypeAlias = "Name | Number | Several | Address"


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode operands;`, where the names of registers and labels contain their scopes."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Name | None
    text: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of `width` bytes at `offset` of the kernel's parameters."""

    offset: int
    width: int


@dataclass
class Kernel:
    """A kernel's entry.

    `registers` maps names to bytes (0 for predicates); `labels` maps names to positions in `code`.
    """

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    code: list[Instruction] = field(default_factory=list)
    most_registers: int = 0


_SPACE = re.compile(r"\s*")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+")
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([bus])(\d+)[^,]*?([\w$]+)(?:\[(\d+)\])?$"
)


def kernel(text: str, name: str) -> Kernel:
    """Parses the entry `name` of a module."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    match = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)([^{{]*)\{{", plain)
    if match is None:
        raise Unknown(f"no entry {name}")
    parsed = Kernel(name)
    _read_parameters(parsed, match[1])
    most = re.search(r"\.maxnreg\s+(\d+)", match[2])
    parsed.most_registers = int(most[1]) if most else 0
    for symbol in re.findall(r"\.extern\s+\.shared[^;]*?(\w+)\[\];", plain):
        parsed.shared[symbol] = 0
    if re.search(r"(?<!\.extern )\.shared\s+\.align", plain):
        raise Unknown("shared arrays of a fixed size")
    _Body(parsed, plain, match.end()).read()
    return parsed


def _read_parameters(target: Kernel, text: str) -> None:
    offset = 0
    for line in filter(None, (part.strip() for part in text.split(","))):
        match = _PARAMETER.match(line)
        if match is None:
            raise Unknown(f"parameter {line}")
        width = int(match[3]) // 8 * int(match[5] or 1)
        align = int(match[1] or 0) if match[5] else width
        offset = -(-offset // align) * align
        target.parameters[match[4]] = Parameter(offset, width)
        offset += width


class _Body:
    """A parser of statements; `{` opens a scope with separate registers and labels."""

    def __init__(self, made: Kernel, text: str, at: int) -> None:
        self.made, self.text, self.at = made, text, at
        self.scopes: list[str] = [""]
        self.count = 0
        self.raw: list[tuple[str, tuple[str, ...]]] = []

    def read(self) -> None:
        while self.scopes:
            self._statement()
        for text, scopes in self.raw:
            self.made.code.append(self._instruction(text, scopes))

    def _statement(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        if self.text[self.at] in "{}":
            self._brace()
        elif label := _LABEL.match(self.text, self.at):
            self.at = label.end()
            self.made.labels[self.scopes[-1] + label[1]] = len(self.raw)
            self._last_label = self.scopes[-1] + label[1]
        else:
            end = self.text.index(";", self.at)
            text, self.at = " ".join(self.text[self.at : end].split()), end + 1
            if text.startswith("."):
                self._directive(text)
            else:
                self.raw.append((text, tuple(self.scopes)))

    def _brace(self) -> None:
        if self.text[self.at] == "{":
            self.count += 1
            self.scopes.append(f"{self.count}:")
        else:
            self.scopes.pop()
        self.at += 1

    def _directive(self, text: str) -> None:
        scope = self.scopes[-1]
        if match := re.fullmatch(r"\.reg \.(pred|[bfus])(\d*) (.*)", text):
            width = int(match[2] or 0) // 8
            for name in re.split(r",\s*", match[3]):
                self._register(scope, name, width)
        elif text.startswith(".branchtargets"):
            targets = tuple(part.strip() for part in text.split(None, 1)[1].split(","))
            self.made.tables[self._last_label] = targets
        elif not text.startswith((".loc", ".pragma")):
            raise Unknown(text)

    def _register(self, scope: str, name: str, width: int) -> None:
        if several := re.fullmatch(r"(.*)<(\d+)>", name):
            for number in range(int(several[2])):
                self.made.registers[f"{scope}{several[1]}{number}"] = width
        else:
            self.made.registers[scope + name] = width

    def _instruction(self, text: str, scopes: Sequence[str]) -> Instruction:
        plain = _instruction(text)
        if len(scopes) == 1:  # The outermost scope leaves names unchanged.
            return plain
        guard = plain.guard and Name(self._scoped(plain.guard.text, scopes), plain.guard.negated)
        return replace(plain, operands=self._inside(plain.operands, scopes), guard=guard)

    def _inside(self, operands: tuple[Operand, ...], scopes: Sequence[str]) -> tuple[Operand, ...]:
        """Returns the operands with the scoped names of registers and labels."""
        operands_read: list[Operand] = []
        for operand in operands:
            match operand:
                case Name(text, negated):
                    operands_read.append(Name(self._scoped(text, scopes), negated))
                case Several(parts):
                    operands_read.append(Several(self._inside(parts, scopes)))
                case Address(base, offset, at):
                    (base,) = self._inside((base,), scopes)
                    operands_read.append(Address(base, offset, self._inside(at, scopes)))
                case Number():
                    operands_read.append(operand)
        return tuple(operands_read)

    def _scoped(self, name: str, scopes: Sequence[str]) -> str:
        for scope in reversed(scopes):
            if scope + name in self.made.registers or scope + name in self.made.labels:
                return scope + name
        return name


@cache
def _instruction(text: str) -> Instruction:
    """Parses an instruction; names lack their scopes."""
    guard, remainder = None, text
    if match := _GUARD.match(text):
        guard = Name(match[2], bool(match[1]))
        remainder = text[match.end() :]
    opcode, _, operands = remainder.partition(" ")
    parts = tuple(_operand(part) for part in _split(operands))
    return Instruction(opcode, parts, guard, text if len(text) < 160 else text[:160] + "...")


@cache
def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return Several(tuple(_operand(p) for p in _split(text[1:-1])))
    if text.startswith("["):
        return _address(text[1:-1].strip())
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
        return Number(int(text[2:], 16), 4 if text[1] in "fF" else 8)
    if _NUMBER.fullmatch(text):
        return Number(int(text.rstrip("U"), 0))
    if "|" in text:
        return Several(tuple(_operand(p.strip()) for p in text.split("|")))
    if match := re.fullmatch(r"([\w$%.]+)\s*\+\s*(-?\d+)", text):
        return Address(_operand(match[1]), int(match[2]))
    return Name(text.lstrip("!"), text.startswith("!"))


def _address(text: str) -> Address:
    base, *more = _split(text)
    at = _operand(more[0]) if more else Several(())
    inner = _operand(base)
    assert isinstance(at, Several)
    if isinstance(inner, Address):
        return Address(inner.base, inner.offset, at.parts)
    return Address(inner, 0, at.parts)


def _split(text: str) -> Iterator[str]:
    """Splits a text at the commas outside of all braces and brackets."""
    depth, begin = 0, 0
    for n, letter in enumerate(text):
        depth += letter in "{["
        depth -= letter in "}]"
        if letter == "," and not depth:
            yield text[begin:n].strip()
            begin = n + 1
    if last := text[begin:].strip():
        yield last
