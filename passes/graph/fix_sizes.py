"""Replaces size symbols of a graph's inputs by numbers, or sets their typical sizes.

    graph(%x : f32[n,seq]) { ... }   with seq = 64   ->   graph(%x : f32[n,64]) { ... }

A bucket needs numbers, and prices need typical sizes.  Requires nothing.  Establishes a graph
without these symbols, or with new typical sizes for them.  Bodies and attributes are changed too,
and every type is inferred again.  Constants stay in the same store.
"""

from collections.abc import Mapping

from tcc.errors import InternalError, UserError
from tcc.ir.graph import Graph
from tcc.ir.graph.rewrite import with_sizes
from tcc.ir.index import Var, const, free_vars, symbol, var_of
from tcc.passes.graph.settle_sizes import settle_sizes

Sizes = Mapping[str, int]


def fix_sizes(graph: Graph, sizes: Sizes) -> Graph:
    """Returns `graph` with each symbol named in `sizes` replaced by its size.

    Raises UserError for a name that is not a symbolic size of an input, and for sizes that the
    model does not accept.
    """
    bound = {
        var: const(size) for var, size in _named(input_symbols(graph), sizes, "--bucket").items()
    }
    try:
        return settle_sizes(with_sizes(graph, bound))
    except InternalError as error:
        # A node that rejects its operands raises ValueError; anything else is a fault of tcc.
        if not isinstance(error.__cause__, ValueError):
            raise
        equal = ", or those that have to be equal one name with --input" if len(sizes) > 1 else ""
        raise UserError(
            "the model does not take these sizes",
            where=" ".join(f"--bucket {name}={size}" for name, size in sizes.items()),
            why=f"{error.where}: {error.why}",
            hint=f"give sizes that all nodes take{equal}",
        ) from None


def with_typical(graph: Graph, sizes: Sizes) -> Graph:
    """Returns `graph` with `sizes` as the typical sizes of its symbols; prices use typical sizes.

    A symbol may be a part of a dimension, as `past` is of past + seq.  Raises UserError for a name
    that is not a symbolic size of an input, and for a size out of range.
    """
    dims = (dim for value in graph.inputs for dim in value.shape)
    symbols = {var.name: var for var in free_vars(*dims)}
    bound = {
        var: symbol(var.name, var.lo, var.hi, var.divisor, size)
        for var, size in _named(symbols, sizes, "--typical").items()
    }
    return with_sizes(graph, bound) if bound else graph


def _named(symbols: Mapping[str, Var], sizes: Sizes, flag: str) -> dict[Var, int]:
    """Returns the symbols that `sizes` names, each with its size.

    `symbols` has the symbols of inputs by name. `flag` is the name of the option in error messages.
    """
    for name, size in sizes.items():
        where = f"{flag} {name}={size}"
        if name not in symbols:
            raise UserError(
                f"no input has a symbolic size {name!r}",
                where=where,
                hint=f"symbolic sizes are: {', '.join(symbols) or 'none'}",
            )
        _check_size(symbols[name], size, where)
    return {symbols[name]: size for name, size in sizes.items()}


def input_symbols(graph: Graph) -> dict[str, Var]:
    """Returns, by name, the size symbols that are a whole dimension of some input: n, but not n +
    1."""
    dims = (dim for value in graph.inputs for dim in value.shape)
    plain = {var.name: var for dim in dims if (var := var_of(dim)) is not None}
    symbols = (v for value in graph.inputs for dim in value.shape for v in free_vars(dim))
    return {v.name: v for v in symbols if v.name in plain}


def _check_size(var: Var, size: int, where: str) -> None:
    high = "" if var.hi is None else f" and at most {var.hi}"
    if size < var.lo or (var.hi is not None and size > var.hi) or size % var.divisor:
        raise UserError(
            f"the model has no size {var.name} = {size}",
            where=where,
            why=f"{var.name} is at least {var.lo}{high}"
            + (f", a multiple of {var.divisor}" if var.divisor > 1 else ""),
        )
