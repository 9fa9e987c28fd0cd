"""torch.compile(model, backend="tcc"): tcc as a backend of torch's own compiler.

    model = torch.compile(model.eval(), backend="tcc")
    y = model(x)

What torch captures is compiled whole; an operator that tcc lacks is an error that names it, never a
part that runs elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tcc.driver import compile
from tcc.frontends import captured

Call = Callable[..., Any]


def torch_backend(
    captured_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Call:
    """What torch calls with a graph that it captured; `options` are keywords of `tcc.compile`.

    Parameters are compiled in as constants; a call that finds one changed compiles anew, but for
    changes that torch does not count, through `.data` or a NumPy view; `torch._dynamo.reset()` has
    them seen.  Results have memory of their own, even where torch would return a view of an input.
    Raises TccError where the graph cannot be compiled, and when gradients of results are computed.
    """
    keywords = dict(options or {})
    call: Call = captured(
        captured_module, example_inputs, lambda program: compile(program, **keywords)
    )
    return call
