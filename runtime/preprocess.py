"""The settings of inputs that an artifact carries: `tcc compile --preprocess FILE.toml`.

    version = 1

    [inputs.images]
    order = "bgr"
    letterbox = 114
    mean = [123.7, 116.3, 103.5]

The tables have the names and values of `input_settings.py`. The manifest's entry `preprocess` holds
the version, the tables, and the SHA-256 of the file.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tcc.runtime.input_settings import Settings, settings_of_table
from tcc.runtime.reports import InputError

VERSION = 1
_MOST_BYTES = 1 << 20
_FORM = 'begin it with version = 1, then a table for each input: [inputs."NAME"]'


def read_preprocess(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Returns the manifest's entry for a file of settings; `names` are those of the inputs.

    Raises InputError for a file that cannot be read, has another form or version, or has a table
    for an input that does not exist, and for settings that `settings_of_table` refuses.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise InputError(
            "the settings cannot be read", where=where, why=why, hint="give a TOML file"
        ) from error
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        why = f"it is no TOML: {error}"
        raise InputError("the settings cannot be read", where=where, why=why, hint=_FORM) from error
    tables = _tables(content, where)
    for name, table in tables.items():
        if name not in names:
            raise InputError(
                f"the model has no input {name!r}",
                where=f"{where}, inputs.{name}",
                hint=f"its inputs are: {', '.join(names)}",
            )
        settings_of_table(table, f"{where}, inputs.{name}")
    return {"version": VERSION, "sha256": hashlib.sha256(data).hexdigest(), "inputs": tables}


def embedded_settings(manifest: Mapping[str, Any]) -> dict[str, Settings]:
    """Returns the settings in a manifest by name of the input; empty without an entry.

    Raises InputError for an entry of another version, and for settings that cannot be read.
    """
    entry = manifest.get("preprocess")
    if entry is None:
        return {}
    where = "the artifact's settings of inputs"
    if not isinstance(entry, dict):
        entry = {}
    content = {name: value for name, value in entry.items() if name != "sha256"}
    tables = _tables(content, where)
    return {name: settings_of_table(table, f"{where}, {name}") for name, table in tables.items()}


def _tables(content: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Returns the tables of settings by input; raises InputError for another form or version."""
    version = content.get("version")
    if type(version) is int and version > VERSION:
        raise InputError(
            f"the settings have version {version}",
            where=where,
            why=f"this tcc knows version {VERSION}",
            hint="use the version of tcc that they were written for, or newer",
        )
    unknown = sorted(content.keys() - {"version", "inputs"})
    if unknown:
        raise InputError(f"there is no key {unknown[0]!r:.60}", where=where, hint=_FORM)
    tables = content.get("inputs")
    if (
        type(version) is not int
        or version != VERSION
        or not isinstance(tables, dict)
        or not all(isinstance(table, dict) for table in tables.values())
    ):
        raise InputError("the settings have another form", where=where, hint=_FORM)
    return tables
