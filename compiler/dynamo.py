"""torch.compile(model, backend="tcc"): tcc as a backend of torch's own compiler.

    model = torch.compile(model.eval(), backend="tcc")
    y = model(x)

tcc compiles the whole graph that torch captures.  An operator that tcc lacks raises an error that
names it; no part of the graph runs elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tcc.driver import compile
from tcc.frontends import captured

Call = Callable[..., Any]


def torch_backend(
    captured_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Call:
    """Compiles a graph that torch captured; `options` are keywords of `tcc.compile`.

    Parameters become constants of the artifact.  A call after a parameter changed compiles anew.
    torch does not count changes through `.data` or a NumPy view: call `torch._dynamo.reset()` after
    them.  Results have memory of their own, even where torch would return a view of an input.
    Raises TccError where the graph cannot be compiled, and when gradients of results are computed.
    """
    keywords = dict(options or {})
    call: Call = captured(
        captured_module, example_inputs, lambda program: compile(program, **keywords)
    )
    return call
