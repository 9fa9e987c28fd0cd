"""The command line.  One command per file; each calls functions of `tcc.driver`.

The names of `commands` are resolved at first use, because workers are modules of this package and
do not need them.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("cli", "execute", "main"):
        raise AttributeError(f"module 'tcc.cli' has no attribute {name!r}")
    return getattr(import_module("tcc.cli.commands"), name)
