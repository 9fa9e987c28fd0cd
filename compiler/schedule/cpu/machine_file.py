"""Machines as JSON files: tcc ships several, `tcc doctor --calibrate` writes one, and `--machine`
reads one.

A file holds `{"tcc_machine": 1, ...}` with the fields of `Machine`. A cache and the memory are
objects of their own. A file may come from anywhere, so it must have every field, with its type and
range, and no other field.
"""

import hashlib
import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.json_file import count, fields_of, name, number, read_json
from tcc.schedule.cpu.machine import Cache, Machine, Memory

_VERSION = 1
_HINT = "make one with: tcc doctor --calibrate -o machine.json"
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
    plain = replace(machine, functions=dict(sorted(machine.functions.items())))
    return json.dumps({"tcc_machine": _VERSION, **asdict(plain)}, indent=1) + "\n"


def machine_digest(machine: Machine) -> str:
    """Returns the SHA-256 of a machine's file, by which a manifest names its compile's machine."""
    return hashlib.sha256(machine_text(machine).encode()).hexdigest()


def read_machine(path: Path, where: str = "") -> Machine:
    """Returns the machine in the file `path`.

    Raises UserError, naming the field, for a file that `machine_text` cannot have written. `where`
    names the file in messages; if it is empty, they name the option `--machine`.
    """
    place = where or f"--machine {path}"
    faults = "the machine file cannot be read", "the file does not describe a machine"
    return read_json(path, _parse, place, *faults, _HINT, _MOST_BYTES)


def _parse(table: Any) -> Machine:
    if not isinstance(table, dict) or table.pop("tcc_machine", None) != _VERSION:
        raise ValueError(f'it has no "tcc_machine": {_VERSION}')
    return Machine(**_fields(Machine, table, ""))


def _fields(kind: type, table: Any, prefix: str) -> dict[str, Any]:
    """Returns the fields of the dataclass `kind` from a JSON object, each checked.

    `prefix` stands before field names in messages. Raises ValueError for a wrong field.
    """
    fields_of(table, prefix.rstrip("."))
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in table]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    unknown = [name for name in table if name not in names]
    if unknown:
        raise ValueError(f"{prefix}{unknown[0][:64]} is not known")
    return {name: _value(name, table[name], prefix + name) for name in names}


def _value(key: str, value: Any, place: str) -> Any:
    if key == "name":
        return name(value, place)
    if key in _RECORDS:
        return _RECORDS[key](**_fields(_RECORDS[key], value, place + "."))
    if key == "functions":
        costs = fields_of(value, place)
        if len(costs) > _MOST_FUNCTIONS:
            raise ValueError(f"{place} has more than {_MOST_FUNCTIONS} functions")
        cycles = {f: number(c, f"{place}.{f[:64]}", _LEAST, _MOST) for f, c in costs.items()}
        return MappingProxyType(cycles)
    if key in _COUNTS:
        return count(value, place, _COUNTS[key])
    lowest = 0.0 if key in _MAY_BE_ZERO else _LEAST
    return number(value, place, lowest, 1.0 if key in _SHARES else _MOST)
