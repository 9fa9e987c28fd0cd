"""Machines as JSON files: tcc ships several, `tcc doctor --calibrate` writes one, and `--machine`
reads one.

A file holds `{"tcc_machine": 1, ...}` with the fields of `Machine`. A cache and the memory are
objects of their own. A file may come from anywhere, so it must have every field, with its type and
range, and no other field.
"""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.errors import UserError
from tcc.schedule.cpu.machine import Cache, Machine, Memory

_VERSION = 1
_MOST_BYTES = 1 << 16
_MOST_FUNCTIONS = 256
# The largest value of each field that is a size or a count, and so a whole number. All other fields
# are rates, times and fractions.
_COUNTS = MappingProxyType(
    {"cores": 4096, "lanes": 1024, "registers": 1024, "l1": 1 << 40, "size": 1 << 40}
)
_LEAST, _MOST = 1e-12, 1e15
_SHARES = frozenset({"in_order", "ahead", "l3_exposed", "memory_exposed"})
_MAY_BE_ZERO = frozenset({"loop", "wait", "l3_exposed", "memory_exposed"})
_RECORDS: MappingProxyType[str, type[Cache] | type[Memory]] = MappingProxyType(
    {"l2": Cache, "l3": Cache, "memory": Memory}
)


def machine_text(machine: Machine) -> str:
    """Returns the file for a machine; equal machines give equal text."""
    table: dict[str, Any] = {"tcc_machine": _VERSION}
    for name, value in _items(machine):
        if isinstance(value, Cache | Memory):
            table[name] = dict(_items(value))
        else:
            table[name] = dict(sorted(value.items())) if name == "functions" else value
    return json.dumps(table, indent=1) + "\n"


def machine_digest(machine: Machine) -> str:
    """Returns the SHA-256 of a machine's file, by which a manifest names its compile's machine."""
    return hashlib.sha256(machine_text(machine).encode()).hexdigest()


def read_machine(path: Path, where: str = "") -> Machine:
    """Returns the machine in the file `path`.

    Raises UserError, naming the field, for a file that `machine_text` cannot have written. `where`
    names the file in messages; if it is empty, they name the option `--machine`.
    """
    where = where or f"--machine {path}"
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            "the machine file cannot be read",
            where=where,
            why=error.strerror or str(error),
            hint="make one with: tcc doctor --calibrate -o machine.json",
        ) from error
    try:
        return _parse(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "the file does not describe a machine",
            where=where,
            why=str(error) if type(error) is ValueError else "it is not JSON",
            hint="make one with: tcc doctor --calibrate -o machine.json",
        ) from error


def _items(table: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(table, field.name)) for field in fields(table)]


def _parse(data: bytes) -> Machine:
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    table = json.loads(data, parse_constant=_no_constant)
    if not isinstance(table, dict) or table.pop("tcc_machine", None) != _VERSION:
        raise ValueError(f'it has no "tcc_machine": {_VERSION}')
    return Machine(**_fields(Machine, table, ""))


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no rate")


def _fields(kind: type, table: Any, prefix: str) -> dict[str, Any]:
    """Returns the fields of the dataclass `kind` from a JSON object, each checked.

    `prefix` stands before field names in messages. Raises ValueError for a wrong field.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{prefix.rstrip('.')} is not an object")
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in table]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    unknown = [name for name in table if name not in names]
    if unknown:
        raise ValueError(f"{prefix}{unknown[0][:64]} is not known")
    return {name: _value(name, table[name], prefix + name) for name in names}


def _value(name: str, value: Any, place: str) -> Any:
    if name == "name":
        if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
            raise ValueError(f"{place} is not a name")
        return value
    if name in _RECORDS:
        return _RECORDS[name](**_fields(_RECORDS[name], value, place + "."))
    if name == "functions":
        if not isinstance(value, dict) or len(value) > _MOST_FUNCTIONS:
            raise ValueError(f"{place} is not an object of function names")
        cycles = {key: _number(cost, f"{place}.{key[:64]}") for key, cost in value.items()}
        return MappingProxyType(cycles)
    if name in _COUNTS:
        if type(value) is not int or not 0 < value <= _COUNTS[name]:
            raise ValueError(f"{place} is not a count from 1 to {_COUNTS[name]}")
        return value
    return _number(
        value, place, 0.0 if name in _MAY_BE_ZERO else _LEAST, 1.0 if name in _SHARES else _MOST
    )


def _number(value: Any, place: str, lowest: float = _LEAST, highest: float = _MOST) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{place} is not a number")
    if not lowest <= value <= highest:
        raise ValueError(f"{place} is not a number from {lowest:g} to {highest:g}")
    return float(value)
