"""Input arrays from a command line: files, filled arrays, and seeded random values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tcc.artifact import input_errors, read_manifest, read_program
from tcc.cli.later_modules import graph, host_program, narrow, options, preprocess, program_sizes
from tcc.cli.later_modules import input_texts as text_inputs
from tcc.cli.show import say_all
from tcc.errors import UserError, file_errors
from tcc.frozen import frozen
from tcc.ir.types import BF16, DTYPES, STRING, DType, DTypeKind
from tcc.runtime import ModulePort
from tcc.temporary import locked_folder
from tcc.zipped import zip_equal

if TYPE_CHECKING:
    from tcc.ir.op import Array
    from tcc.runtime.host_program import HostProgram
    from tcc.runtime.input_settings import Settings


@frozen
class Draw:
    """A draw: the description of one set of random inputs of a model.

    `seed` and `number` determine the random numbers; draws of one seed have different numbers.
    `scale` multiplies floats. `lowest` is the smallest value tried for a symbolic size. With
    `larger`, symbolic sizes are about doubled where the model allows it (see `fitting_shapes`).
    `values` maps an input's name to the integers that it may take. With `quiet`, no line names the
    random inputs.
    """

    seed: int
    number: int = 0
    scale: float = 1.0
    lowest: int = 1
    larger: bool = False
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    quiet: bool = False


def inputs_of(
    path: Path,
    ports: Sequence[ModulePort],
    input_texts: Iterable[str],
    seed: int,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Returns the arrays of `make_inputs` for the artifact at `path`, in the form of `as_taken`.

    With `quiet`, no line names the random inputs.
    """
    settings = embedded_settings(read_manifest(path))
    draw = Draw(seed, quiet=quiet)
    arrays = make_draws(ports, input_texts, [draw], lambda: program_of(path), settings)[0]
    return as_taken(arrays, ports)


def program_of(path: Path, variant: int = 0) -> HostProgram:
    """Returns the program of a variant of the artifact at `path`.

    Raises UserError where the file is no artifact or is damaged.
    """
    data = read_program(path, variant)
    try:
        return host_program.read_program(data)
    except ValueError as error:
        raise UserError(
            "the artifact's program is damaged",
            where=path,
            why=error,
            hint="compile the model again",
        ) from error


def make_inputs(
    ports: Sequence[ModulePort],
    input_texts: Iterable[str],
    seed: int,
    program: Callable[[], HostProgram] | None = None,
    settings: Mapping[str, Settings] | None = None,
) -> dict[str, Any]:
    """Returns one array per port: from `input_texts`, else seeded random values.

    `settings` say for inputs by name how pictures and sounds become arrays. One line on stderr
    names the random inputs.  A sequence comes from files and is empty without any; an optional
    comes from one file and is absent without it.  A symbolic size that no text fixes becomes a size
    that satisfies the checks of `program()`, or 1.  Equal arguments give equal arrays.  Raises
    UserError for a text that names no port or cannot be read.
    """
    return make_draws(ports, input_texts, [Draw(seed)], program, settings)[0]


@input_errors()
def make_draws(
    ports: Sequence[ModulePort],
    input_texts: Iterable[str],
    draws: Sequence[Draw],
    program: Callable[[], HostProgram] | None = None,
    settings: Mapping[str, Settings] | None = None,
) -> list[dict[str, Any]]:
    """Returns the arrays of `make_inputs` for each of `draws`.

    Files are read once. If no input is random, there is only one set of arrays. A `larger` draw is
    left out if its sizes equal those of the smaller draws. One line on stderr names the random
    inputs of each set of sizes that has a draw with number 0.
    """
    texts = text_inputs.texts_by_name(ports, input_texts)
    files = {
        port.name: text_inputs.value_of_files(
            port, texts.get(port.name, ""), (settings or {}).get(port.name)
        )
        for port in ports
        if port.kind != "tensor" or texts.get(port.name, "").startswith("@")
    }
    random_ports = [
        n
        for n, port in enumerate(ports)
        if port.kind == "tensor" and not set("@=") & set(texts.get(port.name, ""))
    ]
    shaped: dict[bool, list[ModulePort]] = {}
    draw_arrays = []
    for draw in draws if random_ports else draws[:1]:
        if draw.larger not in shaped:
            sized_ports = _shaped(ports, texts, files, draw, program)
            if sized_ports in shaped.values():
                continue
            shaped[draw.larger] = sized_ports
            if random_ports and not draw.number and not draw.quiet:
                summary = ", ".join(
                    f"{sized_ports[n].name}={_described_as(sized_ports[n], texts)}"
                    for n in random_ports
                )
                made_up = f"random values of seed {draw.seed}: {summary}"
                say_all([f"{made_up}; give others with --input"], err=True)
        draw_arrays.append(
            {
                port.name: files[port.name]
                if port.name in files
                else _array(port, texts.get(port.name, ""), draw, n)
                for n, port in enumerate(shaped[draw.larger])
            }
        )
    return draw_arrays


def _described_as(port: ModulePort, texts: Mapping[str, str]) -> str:
    """Returns how a random input is printed: the user's text, else its sizes and type."""
    sizes = tuple(1 if size is None else size for size in port.shape)
    return texts.get(port.name) or "x".join(map(str, (*sizes, port.dtype)))


def _shaped(
    ports: Sequence[ModulePort],
    texts: Mapping[str, str],
    files: Mapping[str, Any],
    draw: Draw,
    program: Callable[[], HostProgram] | None,
) -> list[ModulePort]:
    """Returns `ports` with numbers in place of symbolic sizes.

    `texts` maps a port's name to the user's text for its value, `files` to the value that files
    hold. A port with a text stays as it is, because the text decides its sizes. The sizes of other
    ports fit the checks of `program()`.
    """
    known_shapes = {
        n: np.shape(files[port.name])
        if port.name in files
        else np.shape(_array(port, texts[port.name], draw, n))
        for n, port in enumerate(ports)
        if port.name in texts
    }
    free = {n for n, port in enumerate(ports) if n not in known_shapes and None in port.shape}
    if program is None or not free:
        return list(ports)
    shapes = program_sizes.fitting_shapes(program(), known_shapes, draw.lowest, draw.larger)
    return [replace(port, shape=shapes[n]) if n in free else port for n, port in enumerate(ports)]


def embedded_settings(manifest: Mapping[str, Any]) -> Mapping[str, Settings]:
    """Returns the settings of inputs that an artifact's manifest has, by name of the input."""
    if "preprocess" not in manifest:
        return {}
    with input_errors("the artifact"):
        return preprocess.embedded_settings(manifest)


def _array(port: ModulePort, text: str, draw: Draw, number: int) -> Array:
    where = f"--input {port.name}={text}"
    described, equals, value = text.partition("=")
    try:
        dtype, shape = _described(port, described)
        if equals:
            return np.full(shape, _number(value, dtype), dtype.carrier)
        return _random(dtype, shape, draw, number, draw.values.get(port.name, (0, 1)))
    except (ValueError, OverflowError) as error:
        raise UserError("bad input", where=where, why=error, hint=text_inputs.FORMS) from error


def _described(port: ModulePort, text: str) -> tuple[DType, tuple[int, ...]]:
    """Parses `2x3xf32`, `2x3`, `f32` or nothing; the port supplies a missing type or shape."""
    sizes_text, _, type_name = text.rpartition("x")
    if type_name in DTYPES:
        return DTYPES[type_name], options.read_shape(sizes_text)
    if text:
        return DTYPES[port.dtype], options.read_shape(text)
    return DTYPES[port.dtype], tuple(1 if size is None else size for size in port.shape)


def _number(text: str, dtype: DType) -> int | float | bool | str:
    if dtype is STRING:
        return text
    if dtype.kind is DTypeKind.FLOAT:
        return float(text)
    number = int(text)
    if dtype.kind is DTypeKind.BOOL and number not in (0, 1):
        raise ValueError(f"{text} is neither 0 nor 1")
    return number


def _random(
    dtype: DType, shape: tuple[int, ...], draw: Draw, number: int, values: Sequence[int]
) -> Array:
    """Returns the random array of the input with index `number`.

    Floats are normally distributed. Integers are drawn from `values`. Strings are "0" or "1".
    """
    rng = np.random.default_rng([draw.seed, number, draw.number])
    if dtype is STRING:
        return rng.integers(0, 2, shape).astype("U1").astype(object)
    if dtype.kind is DTypeKind.FLOAT:
        return (rng.standard_normal(shape) * draw.scale).astype(dtype.carrier)
    indices = rng.integers(0, len(values), shape)
    return np.asarray(np.asarray(values)[indices], dtype.carrier)


# ---- types that NumPy lacks: a wider type here, bit patterns for a module ------------------------


def is_carried(port: ModulePort) -> bool:
    """True if NumPy lacks the port's type (bf16 and narrower types).

    Arrays of the port then have a wider type in the command line.
    """
    return port.kind == "tensor" and (port.dtype == BF16.name or DTYPES[port.dtype].is_narrow)


def as_taken(arrays: Mapping[str, Any], ports: Sequence[ModulePort]) -> dict[str, Any]:
    """Returns arrays in the form that a module takes.

    Floats for a port whose type NumPy lacks are rounded to that type, and become arrays of its bit
    patterns.
    """
    return _converted(arrays, ports, _bits)


def as_values(arrays: Mapping[str, Any], ports: Sequence[ModulePort]) -> dict[str, Any]:
    """Returns arrays or results of a module with values in place of bit patterns.

    It is the inverse of `as_taken`.
    """
    return _converted(arrays, ports, _values)


def _converted(
    arrays: Mapping[str, Any], ports: Sequence[ModulePort], convert: Callable[[Array, DType], Array]
) -> dict[str, Any]:
    types = {port.name: DTYPES[port.dtype] for port in ports if is_carried(port)}
    return {name: convert(a, types[name]) if name in types else a for name, a in arrays.items()}


def _bits(array: Array, dtype: DType) -> Array:
    # In a file, elements of a type that NumPy does not know have a void type of the same size.
    if array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}") if array.dtype.itemsize in (1, 2) else array
    if array.dtype != dtype.carrier or not dtype.is_float:
        return array
    if dtype is not BF16:
        return narrow.encode(array, dtype)
    return narrow.bf16_bits(graph.carrier(array, BF16))


def _values(array: Array, dtype: DType) -> Array:
    if array.dtype == dtype.carrier:
        return array
    if array.dtype.itemsize > 2 or array.dtype.kind not in "uiV":
        return array  # the array has another type than the port, which the run reports
    if dtype is BF16:
        return narrow.bf16_values(array.view(np.uint16))
    return (
        narrow.decode(array.view(np.uint8), dtype)
        if dtype.is_float
        else array.astype(dtype.carrier)
    )


def save_array(path: Path, array: Array) -> None:
    """Saves an array; strings are saved without pickle, because no pickled data is read."""
    np.save(path, array.astype(str) if array.dtype == object else array)


def write_arrays(values: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Writes `NAME.npy` for each array, and `NAME.0.npy` and so on for each sequence.

    Returns the path of each array by its name, such as `NAME.0`. Each file appears complete or not
    at all.  Characters that a file name cannot have become `_`.
    """
    arrays = dict(_flat(values))
    names = ["".join(c if c.isalnum() or c in "._-" else "_" for c in name) for name in arrays]
    if len(set(names)) != len(names):
        names = [f"{index}-{name}" for index, name in enumerate(names)]
    with file_errors("cannot write outputs", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(".tcc-made-", folder) as staging:
            for name, array in zip_equal(names, arrays.values()):
                save_array(staging / f"{name}.npy", array)
            for name in names:
                (staging / f"{name}.npy").replace(folder / f"{name}.npy")
    return {name: folder / f"{file}.npy" for name, file in zip_equal(arrays, names)}


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yields each array with its name, and each element of a sequence; skips absent optionals."""
    for name, value in values.items():
        if isinstance(value, list):
            yield from _flat({f"{name}.{n}": item for n, item in enumerate(value)})
        elif value is not None:
            yield name, value
