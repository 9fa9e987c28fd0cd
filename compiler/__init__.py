"""tcc: an ahead-of-time tensor compiler.  One trained model in, one native file out.

    import tcc
    module = tcc.compile("model.onnx")              # or tcc.load("model.so")
    outputs = module.run({"x": x})

Names are resolved at first use, so that `import tcc` is quick and avoids import cycles.
"""

import sys

TYPE_CHECKING = False  # importing `typing` takes longer than the rest of `import tcc`
if TYPE_CHECKING:
    from typing import Any

    from tcc.artifact import load
    from tcc.driver import compile
    from tcc.dynamo import torch_backend
    from tcc.errors import (
        CompileWarning,
        InternalError,
        RunTimeoutError,
        TccError,
        ToolError,
        UserError,
    )
    from tcc.runtime import Module, ray, tvm
    from tcc.runtime.graph import graph
    from tcc.runtime.profile import profile
    from tcc.target import Target

__version__ = "0.1.0"

_HOME = {
    "CompileWarning": "tcc.errors",
    "InternalError": "tcc.errors",
    "Module": "tcc.runtime",
    "RunTimeoutError": "tcc.errors",
    "Target": "tcc.target",
    "TccError": "tcc.errors",
    "ToolError": "tcc.errors",
    "UserError": "tcc.errors",
    "compile": "tcc.driver",
    "graph": "tcc.runtime.graph",
    "load": "tcc.artifact",
    "profile": "tcc.runtime.profile",
    "ray": "tcc.runtime",
    "torch_backend": "tcc.dynamo",
    "tvm": "tcc.runtime",
}
__all__ = [
    "CompileWarning",
    "InternalError",
    "Module",
    "RunTimeoutError",
    "Target",
    "TccError",
    "ToolError",
    "UserError",
    "__version__",
    "compile",
    "graph",
    "load",
    "profile",
    "ray",
    "torch_backend",
    "tvm",
]


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'tcc' has no attribute {name!r}")
    __import__(_HOME[name])
    return getattr(sys.modules[_HOME[name]], name)


def __dir__() -> list[str]:
    return sorted(__all__)
