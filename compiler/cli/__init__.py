"""The command line.  One command per file; each calls functions of `tcc.driver`.

`cli`, `execute` and `main` are imported from `commands` at first use. Worker processes import
modules of this package too, and start faster without the commands.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("cli", "execute", "main"):
        raise AttributeError(f"module 'tcc.cli' has no attribute {name!r}")
    return getattr(import_module("tcc.cli.commands"), name)
