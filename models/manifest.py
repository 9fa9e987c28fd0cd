"""The list of the models with their inputs and outputs.

`manifest.toml` is the only list of models; this module reads it into frozen records.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).with_name("manifest.toml")
_BATCH = re.compile("n|[1-9][0-9]{0,3}")

# Names of symbolic sizes by input and axis.
Symbols = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One model input: its shape, its dtype ("f32" or "i64") and how its values are drawn.

    `low` and `high` bound integer generators, both inclusive; they are 0 for other generators.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    generator: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One table of the manifest.

    `builder` is "family:function"; `tolerance` is relative to the largest output; `gmac` counts the
    multiply-adds of one run in units of 1e9; `neutral` holds fnmatch patterns of initialisers that
    provably cannot change any output, with the reason in `notes`. `symbols` names the symbolic
    sizes of the file; the shapes then belong to an example.
    """

    name: str
    builder: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    tolerance: float
    gmac: float
    neutral: tuple[str, ...]
    notes: str
    symbols: Symbols = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Returns the name of this folder's module that defines the builder."""
        return self.builder.partition(":")[0]


def _names(entry: dict[str, Any]) -> tuple[str, ...]:
    """Expands "name.{}" with `repeat = n` to name.0 ... name.(n-1)."""
    pattern: str = entry["name"]
    if "repeat" not in entry:
        return (pattern,)
    return tuple(pattern.format(index) for index in range(entry["repeat"]))


def _inputs(entry: dict[str, Any]) -> tuple[InputSpec, ...]:
    return tuple(
        InputSpec(
            name=name,
            shape=tuple(entry["shape"]),
            dtype=entry["dtype"],
            generator=entry["generator"],
            low=entry.get("low", 0),
            high=entry.get("high", 0),
        )
        for name in _names(entry)
    )


def _model(name: str, table: dict[str, Any]) -> ModelSpec:
    return ModelSpec(
        name=name,
        builder=table["builder"],
        inputs=tuple(spec for entry in table["inputs"] for spec in _inputs(entry)),
        outputs=tuple(output for entry in table["outputs"] for output in _names(entry)),
        tolerance=table["tolerance"],
        gmac=table["gmac"],
        neutral=tuple(table.get("neutral", ())),
        notes=table["notes"],
    )


@cache
def manifest() -> dict[str, ModelSpec]:
    """Returns every model by name, in the order of the file."""
    tables = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    return {name: _model(name, table) for name, table in tables.items()}


def model_spec(name: str) -> ModelSpec:
    """Returns one model's table; raises KeyError naming the known models otherwise.

    `NAME.b8` is NAME for a batch of 8: the same weights, eight times the inputs' first dimension.
    `NAME.bn` is NAME for any batch: the inputs' first dimension is the symbol n.
    """
    known = manifest()
    base, _, batch = name.partition(".b")
    if base not in known or (name != base and not _BATCH.fullmatch(batch)):
        raise KeyError(f"no model {name!r} in the manifest; there are: {', '.join(known)}")
    if name == base:
        return known[name]
    if batch == "n":
        spec = known[base]
        return replace(opened(spec, {entry.name: {0: batch} for entry in spec.inputs}), name=name)
    return _batched(known[base], int(batch))


def opened(spec: ModelSpec, symbols: Symbols) -> ModelSpec:
    """Returns the model with symbolic sizes and a name like `unet.image-2-3`.

    A symbolic size of 1 in `spec` becomes 2 in the example, because torch's exporters take 1 for a
    constant. Raises ValueError for an input or an axis that the model lacks.
    """
    shapes = {entry.name: list(entry.shape) for entry in spec.inputs}
    for name, axes in symbols.items():
        if name not in shapes:
            raise ValueError(f"{spec.name} has no input {name!r}, but {', '.join(shapes)}")
        for axis in axes:
            if not 0 <= axis < len(shapes[name]):
                last = len(shapes[name]) - 1
                raise ValueError(
                    f"input {name!r} of {spec.name} has no axis {axis}: its axes are 0 to {last}"
                )
            shapes[name][axis] = max(shapes[name][axis], 2)
    parts = ["-".join(map(str, (name, *axes))) for name, axes in symbols.items()]
    inputs = tuple(replace(entry, shape=tuple(shapes[entry.name])) for entry in spec.inputs)
    return replace(spec, name=".".join((spec.name, *parts)), inputs=inputs, symbols=symbols)


def _batched(spec: ModelSpec, batch: int) -> ModelSpec:
    inputs = (replace(i, shape=(i.shape[0] * batch, *i.shape[1:])) for i in spec.inputs)
    return replace(spec, name=f"{spec.name}.b{batch}", inputs=tuple(inputs), gmac=spec.gmac * batch)
