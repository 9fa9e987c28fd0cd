"""Many cases of the op matrix in one artifact: each case is a node with separate ports.

Halving isolates a case that fails to compile and reports its exception; the others run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from tcc import driver, runtime
from tcc.errors import TccError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.lists import ListType
from tcc.ir.narrow import decode, encode
from tcc.ir.types import BF16, TensorType
from tcc.ops.data.lists import pack
from tcc.options import read_options

from .cases import Array, Case, check, reference, symbolic
from .special import SpecialCase, differs


@dataclass(frozen=True)
class Variant:
    """A way to compile a case: `open` makes sizes symbolic, `constant` operands become
    constants."""

    open: bool = False
    constant: frozenset[int] = frozenset()


PLAIN = Variant()


@dataclass
class Results:
    """A batch's results: the outputs of each case by name, or its exception."""

    outputs: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)


def graph_of(cases: Sequence[Case], variants: Mapping[str, Variant]) -> Graph:
    """Returns a graph in which case n has inputs `i<n>.<operand>` and outputs `o<n>.<result>`."""
    builder = GraphBuilder("batch")
    outputs = []
    for n, case in enumerate(cases):
        variant = variants.get(case.name, PLAIN)
        types = symbolic(case.types) if variant.open else case.types
        operands = [
            None if t is None or a is None else _operand(builder, variant, f"i{n}.{k}", k, t, a)
            for k, (t, a) in enumerate(zip(types, case.operands, strict=True))
        ]
        names = [f"o{n}.{k}" for k in range(len(case.op.infer(types, case.sample.attrs)))]
        outputs += builder.add(case.op, operands, case.sample.attrs, loc=case.name, names=names)
    return builder.finish(outputs)


def _operand(
    builder: GraphBuilder, variant: Variant, name: str, k: int, type: TensorType, array: Array
) -> Any:
    if k in variant.constant:
        return builder.constant(array, name, type.dtype)
    return builder.input(name, type)


def feeds_of(cases: Sequence[Case], variants: Mapping[str, Variant]) -> dict[str, Array]:
    feeds = {}
    for n, case in enumerate(cases):
        constant = variants.get(case.name, PLAIN).constant
        for k, (array, type) in enumerate(zip(case.operands, case.types, strict=True)):
            if array is not None and type is not None and k not in constant:
                feeds[f"i{n}.{k}"] = to_storage(array, type)
    return feeds


def to_storage(array: Array, type: TensorType) -> Array:
    """Returns an array as artifacts take it: narrow floats, which NumPy holds wider, as bits."""
    if type.dtype is BF16:
        return np.asarray((array.view(np.uint32) >> 16).astype(np.uint16))
    if type.dtype.is_narrow and type.dtype.is_float:
        return encode(array, type.dtype)
    return np.asarray(array)


def from_storage(array: Array, type: TensorType) -> Array:
    if type.dtype is BF16:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if not type.dtype.is_narrow:
        return array
    if type.dtype.is_float and array.dtype == np.uint8:
        return decode(array, type.dtype)
    return np.asarray(array.astype(type.dtype.carrier))


def _packed(value: Any, type: TensorType) -> Any:
    """Returns lists in the form of the references."""
    if not isinstance(type.dtype, ListType):
        return value
    if type.dtype.optional:
        return pack(() if value is None else (value,))
    return pack(value)


Together = Callable[[Sequence[Case], str, Mapping[str, Variant]], Mapping[str, Any]]


def run_batch(
    cases: Sequence[Case],
    cpu: str = "host",
    variants: Mapping[str, Variant] | None = None,
    together: Together | None = None,
) -> Results:
    """Compiles and runs the cases, whose names must be distinct; `together` replaces the runner."""
    results = Results()
    _run(cases, cpu, variants or {}, results, together or run_together)
    return results


def _run(
    cases: Sequence[Case],
    cpu: str,
    variants: Mapping[str, Variant],
    results: Results,
    together: Together,
) -> None:
    try:
        outputs = together(cases, cpu, variants)
    except (TccError, runtime.RuntimeFailure, AssertionError, LookupError, ValueError) as error:
        if len(cases) == 1:
            results.failures[cases[0].name] = error
            return
        middle = len(cases) // 2
        _run(cases[:middle], cpu, variants, results, together)
        _run(cases[middle:], cpu, variants, results, together)
        return
    for n, case in enumerate(cases):
        types = case.op.infer(case.types, case.sample.attrs)
        results.outputs[case.name] = tuple(
            from_storage(_packed(outputs[f"o{n}.{k}"], t), t) for k, t in enumerate(types)
        )


def run_together(
    cases: Sequence[Case],
    cpu: str,
    variants: Mapping[str, Variant],
    level: int = 2,
    numerics: str = "default",
    derive: bool = True,
) -> dict[str, Any]:
    """Compiles the cases for `cpu` at `-O<level>`, with derivations if `derive`; returns the
    outputs."""
    # With xdist, the other CPU runs another batch.
    jobs = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
    options = read_options(
        {"cpu": cpu, "jobs": jobs, "level": level, "numerics": numerics, "derive": derive}
    )
    graph = graph_of(cases, variants)
    with (
        TemporaryDirectory() as folder,
        patch.object(driver, "load_batched", lambda g, *_, **__: (g, None)),
    ):
        path = Path(folder, "batch.so")
        driver.compile_model(graph, options, path)
        return runtime.load(path, 2, poison=True).run(feeds_of(cases, variants))


def disagreements(cases: Sequence[Case], results: Results) -> list[str]:
    """Returns a line with the reason for each case that differs from the reference."""
    lines = []
    for case in cases:
        why = results.failures.get(case.name)
        if why is None:
            try:
                with np.errstate(all="ignore"):
                    expected = reference(case)
                    check(case, results.outputs[case.name], expected, case.op.tolerance)
                    if isinstance(case, SpecialCase):
                        why = differs(case, results.outputs[case.name], expected) or None
            except AssertionError as error:
                why = error
        if why is not None:
            lines.append(f"{case.name}: {' '.join(str(why).split())[:200]}")
    return lines
