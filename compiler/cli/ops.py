"""`tcc ops`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
from tcc.cli.choices import json_flag, switch
from tcc.cli.later_modules import driver
from tcc.cli.show import print_json, say_all
from tcc.errors import UserError
from tcc.ir.op import OpSpec
from tcc.ops import OPS
from tcc.passes.graph.legalize_calls import EXPRESSED
from tcc.passes.program.lower_calls import BY_KERNELS, CALLS
from tcc.passes.program.lower_collectives import COLLECTIVES
from tcc.runtime.terminal import Table

# The ops that run on the host only: GPUs have no kernels for them.
_HOST_ONLY = CALLS.keys() - BY_KERNELS - EXPRESSED.keys()


def op_record(op: OpSpec) -> dict[str, Any]:
    """Returns the row of an op: name, ONNX names, element types, form, GPU support, meaning."""
    if op.expr is not None:
        form = "expression" if op.call is None else f"expression or runtime function {op.call}"
    elif op.call is not None:
        form = f"runtime function {op.call}"
    else:
        form = "collective" if op.name in COLLECTIVES else "control flow"
    return {
        "name": op.name,
        "onnx": [op.onnx.name] if op.onnx else [],
        "dtypes": [dtype.name for dtype in op.dtypes],
        "form": form,
        "gpu": op.name not in _HOST_ONLY,
        "doc": op.doc.strip().splitlines()[0],
    }


def _plain(name: str) -> str:
    """Returns a name in lower case without the prefix of its domain."""
    return re.sub(r"^(aten::|aten\.|ai\.onnx\.|com\.microsoft\.)", "", name.lower())


def _imported(name: str) -> Iterator[dict[str, Any]]:
    """Yields the row of an operator that is not in the op table, if an importer converts it.

    The importer writes the operator as several ops of the table. Yields nothing for an unknown
    operator.
    """
    parts = dict[str, Any](dtypes=[], form="other rows", gpu=None)
    onnx = [*driver.onnx_opsets(_plain(name))]
    module = driver.aten_converter(name)
    if onnx:
        doc = "An operator of ONNX that the import writes as others."
        yield {"name": onnx[0], "onnx": onnx, **parts, "doc": doc}
    elif module:
        doc = f"An operator of ATen that {module} writes as others."
        yield {"name": _plain(name), "onnx": [], **parts, "doc": doc}


def _versions(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the names of the ONNX operators that a row stands for, and the opsets of each.

    They are the row's ONNX operators, and those called like the row or like `name`.
    """
    opsets = driver.onnx_opsets(_plain(name), row["name"], *row["onnx"])
    return {"onnx": [*opsets], "opsets": opsets}


@click.command()
@click.argument("names", nargs=-1)
@switch("--onnx", "as_onnx", "List the ONNX operators that import.")
@json_flag
def ops(names: tuple[str, ...], as_onnx: bool, as_json: bool) -> None:
    """Lists the operators that tcc knows, or says what it knows of NAMES (ONNX's and aten's too).

    \b
    Example:
      tcc ops softmax Conv aten.gelu
      tcc ops --onnx
    """
    if as_onnx:
        operators = driver.onnx_operators()
        click.echo(json.dumps(operators) if as_json else "\n".join(operators))
        return
    rows = [op_record(op) for op in OPS.values()]
    if names:
        by_name: dict[str, dict[str, Any]] = {}
        for name in names:
            named = [r for r in rows if _plain(name) in map(_plain, (r["name"], *r["onnx"]))]
            named = named or list(_imported(name))
            if not named:
                raise UserError(
                    f"there is no op {name!r}",
                    hint="`tcc ops` lists them, `tcc ops --onnx` the ONNX operators",
                )
            by_name |= {row["name"]: row | _versions(name, row) for row in named}
        rows = list(by_name.values())
    if as_json:
        print_json(rows)
        return
    cells = [(row["name"], row["doc"]) for row in rows]
    if names:
        cells = [line for row in rows for line in _facts(row)]
    say_all([Table(cells, has_heads=False)])


def _facts(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the lines of an operator: its name in the first, and a fact in each."""
    yield row["name"], row["doc"]
    for onnx, opsets in row["opsets"].items():
        yield "", f"ONNX: {onnx}, opsets {', '.join(map(str, opsets))}"
    if row["dtypes"]:
        engine = "NCCL or RCCL" if row["form"] == "collective" else "kernels"
        yield "", f"types: {' '.join(row['dtypes'])}"
        yield "", f"as: {row['form']}"
        yield "", f"on GPUs: {engine if row['gpu'] else 'only with --allow-host'}"
