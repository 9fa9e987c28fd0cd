"""Reads the cases of ONNX's own backend suite, with inputs and expected outputs; needs onnx."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
_BF16_RTOL = 2.0**-6  # ONNX's runner allows errors of two units in the last place of bfloat16


@dataclass(frozen=True)
class SuiteCase:
    """A case of ONNX's test suite.

    `source` is ONNX's test case, which contains the model, for the kind "node"; the file of the
    model for "real"; and the folder of the case for all other kinds.
    """

    name: str
    kind: str
    rtol: float
    atol: float
    source: Any

    def load(self) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
        """Returns the model and its data sets: (inputs in the model's order, expected outputs).

        A value is an array, a list for a sequence, or None for an absent optional.
        """
        if self.kind == "node":
            return self.source.model, [
                ([_value(v) for v in inputs], [_value(v) for v in outputs])
                for inputs, outputs in self.source.data_sets
            ]
        return _light(self.source) if self.kind == "real" else _folder(self.source)


def load_cases(kinds: Sequence[str] = KINDS) -> tuple[SuiteCase, ...]:
    """Returns all cases of the given kinds, sorted by kind, then by name."""
    cases = []
    for kind in kinds:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # ONNX computes expected outputs, and NumPy warns
            listed = load_model_tests(kind=kind)
        cases += [
            SuiteCase(_unique(test.name, kind), kind, test.rtol, test.atol, _source(test))
            for test in sorted(listed, key=lambda test: test.name)
        ]
    return tuple(cases)


def node_cases(modules: Sequence[str]) -> tuple[SuiteCase, ...]:
    """Imports `modules` of ONNX's suite; returns all node cases that are defined then.

    Cases of modules that were imported before are among them.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in modules:
            import_module(f"{node.__name__}.{name}")
    tests = sorted(node._NodeTestCases, key=lambda test: test.name)
    return tuple(SuiteCase(test.name, "node", test.rtol, test.atol, test) for test in tests)


def node_modules() -> tuple[str, ...]:
    """Returns the modules of ONNX's suite that define node cases."""
    return tuple(sorted(info.name for info in iter_modules(node.__path__)))


def _unique(name: str, kind: str) -> str:
    """Returns a name that no case of another kind has: `name` for "node", else `kind`/`name`."""
    return name if kind == "node" else f"{kind}/{name}"


def _source(test: Any) -> Any:
    if test.kind == "node":
        return test
    if test.url is not None:
        return Path(DATA_DIR, "light", Path(test.url).name)
    return Path(test.model_dir)


def _value(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _folder(folder: Path) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    model = onnx.load(folder / "model.onnx")
    data = []
    for place in sorted(folder.glob("test_data_set_*")):
        inputs = list(_read(place, "input", [v.type for v in model.graph.input]))
        data.append((inputs, list(_read(place, "output", [v.type for v in model.graph.output]))))
    return model, data


def _read(place: Path, name: str, types: Sequence[TypeProto]) -> Iterator[Any]:
    for number in range(len(list(place.glob(f"{name}_*.pb")))):
        raw = (place / f"{name}_{number}.pb").read_bytes()
        match types[number].WhichOneof("value"):
            case "sequence_type":
                yield numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
            case "optional_type":
                yield numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
            case _:
                yield numpy_helper.to_array(TensorProto.FromString(raw))


def _light(path: Path) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Returns a large network with constant weights, and its only data set.

    Inputs are the dummy data of ONNX's runner; expected outputs are files beside the model.
    """
    model = onnx.load(path)
    fixed = {t.name for t in model.graph.initializer}
    fed_inputs = [v for v in model.graph.input if v.name not in fixed]
    inputs = [Runner.generate_dummy_data(v, seed=0, name=path.stem) for v in fed_inputs]
    files = [path.with_name(f"{path.stem}_output_{n}.pb") for n in range(len(model.graph.output))]
    outputs = [numpy_helper.to_array(TensorProto.FromString(f.read_bytes())) for f in files]
    return model, [(inputs, outputs)]


def mismatch(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """Returns the first difference between a run's outputs and the expected ones, "" if there is
    none.

    Values are compared as ONNX's runner does it.
    """
    if len(results) != len(expected):
        return f"{len(results)} outputs, {len(expected)} expected"
    for number, (result, wanted_result) in enumerate(zip(results, expected, strict=True)):
        why = _difference(result, wanted_result, rtol, atol)
        if why:
            return f"output {number}: {why}"
    return ""


def _difference(results: Any, expected: Any, rtol: float, atol: float) -> str:
    if isinstance(expected, list | tuple):
        if not isinstance(results, list | tuple):
            return f"{type(results).__name__} instead of a sequence"
        return mismatch(results, expected, rtol, atol)
    if expected is None or results is None:
        return "" if results is expected else "one of the two is absent"
    if not isinstance(results, np.ndarray):
        return f"{type(results).__name__} instead of an array"
    expected = np.asarray(expected)
    if results.shape != expected.shape:
        return f"shape {results.shape}, {expected.shape} expected"
    if expected.dtype.kind in "OSU":
        return "" if np.array_equal(results, expected) else "strings differ"
    if results.dtype != expected.dtype:
        return f"element type {results.dtype}, {expected.dtype} expected"
    # Types of ml_dtypes (bfloat16, float8, ...) are compared in f32, for NumPy cannot compare them.
    if expected.dtype.kind not in "biufc":
        rtol = max(rtol, _BF16_RTOL) if expected.dtype.name == "bfloat16" else rtol
        results, expected = results.astype(np.float32), expected.astype(np.float32)
    try:
        np.testing.assert_allclose(results, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines[1:6])[:300]
    return ""


# ---- categories --------------------------------------------------------------------------------

_NARROW = {
    TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E8M0,
    TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2,
}  # fmt: skip
_RANDOM = re.compile(
    r"bernoulli|training_dropout(?!.*zero)|dropout.*_random|random_(uniform|normal)"
)


def category(case: SuiteCase, model: onnx.ModelProto) -> str:
    """Returns the row of the summary that counts the case.

    For a node case, the row names the rarest feature that the case needs ("sequence, optional",
    "bf16", ...); for any other case, its kind.
    """
    if case.kind != "node":
        return case.kind
    domains = {node_.domain for node_ in model.graph.node}
    if domains - {"", "ai.onnx"}:
        return sorted(domains - {"", "ai.onnx"})[0]
    if "image_decoder" in case.name:
        return "image decoder"
    if _RANDOM.search(case.name):
        return "random"
    types = [value.type for value in (*model.graph.input, *model.graph.output)]
    if any(t.WhichOneof("value") != "tensor_type" for t in types):
        return "sequence, optional"
    elements = {t.tensor_type.elem_type for t in types}
    if TensorProto.STRING in elements:
        return "string"
    if elements & _NARROW:
        return "narrow types"
    if {node_.op_type for node_ in model.graph.node} & {"If", "Loop", "Scan"}:
        return "control flow"
    if TensorProto.BFLOAT16 in elements:
        return "bf16"
    return "f16" if TensorProto.FLOAT16 in elements else "core"
