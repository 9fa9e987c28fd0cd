"""Loads and runs artifacts; imports nothing else of tcc.

Names are resolved at first use, because some modules of this package need no NumPy.
`ray` is the module `tcc.runtime.ray`, which runs do not need.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tcc.runtime.module import Module, load
    from tcc.runtime.ports import ModulePort
    from tcc.runtime.reports import RuntimeFailure, RuntimeTimeout, Statistics, Time

__all__ = ["Module", "ModulePort", "RuntimeFailure", "RuntimeTimeout", "Statistics", "Time", "load"]

_HOME = {"Module": "module", "load": "module", "ModulePort": "ports"}


def __getattr__(name: str) -> Any:
    if name in ("ray", "tvm"):
        __import__(f"{__name__}.{name}")
        return sys.modules[f"{__name__}.{name}"]
    if name not in __all__:
        raise AttributeError(f"module 'tcc.runtime' has no attribute {name!r}")
    home = f"{__name__}.{_HOME.get(name, 'reports')}"
    __import__(home)
    return getattr(sys.modules[home], name)
