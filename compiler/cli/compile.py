"""`tcc compile`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.later_modules import driver, forms
from tcc.cli.log import LOG
from tcc.cli.progress import progress
from tcc.cli.show import print_json, print_text, say, say_all
from tcc.debug import Stopped, timing_table
from tcc.errors import UserError, file_errors
from tcc.runtime import summary_text
from tcc.runtime.sections import SIDE_SUFFIX
from tcc.runtime.terminal import Table


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    metavar="OUT",
    help="Default: MODEL.so, or MODEL.c for --target c, here.",
)
@click.option(
    "--package",
    type=PATH,
    metavar="DIR",
    help="Writes a folder with library, headers, and files for CMake and pkg-config.",
)
@compile_flags
@json_flag
def compile(
    model: Path, output: Path | None, package: Path | None, as_json: bool, **choices: Any
) -> None:
    """Compiles MODEL, an ONNX file, a .pt2 archive, a GGUF file or a folder of
    Hugging Face, into one shared library, or into one C file and its header.

    \b
    Example:
      tcc compile model.onnx -o model.so --cpu x86-64-v3 --input image=1x3x224x224
      tcc compile model.onnx --target cpu:aarch64 --cpu neoverse-n1
      tcc compile model.onnx --target cuda:sm_90
      tcc compile model.onnx --target cuda+rocm+cpu --cpu x86-64-v3
      tcc compile model.onnx --target c -o model.c
      tcc compile model.onnx --package model
      tcc compile model.gguf
      tcc compile model.onnx --stop-after partition
      tcc compile model.onnx --choices choices.jsonl
      tcc compile model.onnx --tuned tcc.lock.json --require-tuned 1%
    """
    options = chosen_options(choices)
    try:
        with progress(f"compiling {model.name}") as stage:
            if package is None:
                place = _place(model, output, driver.output_suffix(options))
                compiled = driver.compile_model(model, options, place, stage, whole=True)
            else:
                _check_package(output, package)
                compiled = driver.compile_package(model, options, package, _name(model), stage)
    except Stopped as stopped:
        print_text(forms.text(stopped.form))
        return
    for warning in compiled.warnings:
        say(f"warning: {warning}", err=True)
    record = _record(compiled, package is not None)
    if as_json:
        timings = [asdict(timing) for timing in compiled.timings]
        print_json({**record, "timings": timings} if options.time_passes else record)
        return
    if options.time_passes:
        print_text(timing_table(compiled.timings))
        say(f"{compiled.summary.priced} schedules priced")
    if LOG.level != "quiet":
        say_all([Table([*summary_text.summary_rows(record)], has_heads=False)])


def _record(compiled: "driver.CompileResult", is_package: bool) -> dict[str, Any]:
    """Returns the facts of a compile for --json; the lines at its end have a part of them."""
    path, record = compiled.path, asdict(compiled.summary)
    header = f"../include/{path.stem}/{path.stem}.h" if is_package else f"{path.stem}.h"
    names = path.name, path.name + SIDE_SUFFIX, header
    files = [file for name in names if (file := path.parent / name).exists()]
    targets = [variant["target"] for variant in record["variants"]]
    return {
        "path": str(path),
        "files": [{"path": os.path.normpath(file), "bytes": file.stat().st_size} for file in files],
        **record,
        "warnings": compiled.warnings,
        "next": summary_text.next_step(path, targets, path.stem if is_package else ""),
    }


def _check_package(output: Path | None, package: Path) -> None:
    """Raises UserError where -o names a place beside that of --package, or where that is a file."""
    with file_errors("a path cannot be used", package):
        is_folder = package.is_dir() or not package.exists()
    if not is_folder:
        raise UserError("the package is a file", where=f"--package {package}", hint="name a folder")
    if output is not None:
        raise UserError(
            "the output has two places",
            where=f"-o {output}",
            why=f"--package {package} holds the library",
            hint="leave out one of them",
        )


def _name(model: Path) -> str:
    """Returns the name of a model: that of its folder, or that of its file without the suffix."""
    return model.resolve().name if model.is_dir() else model.stem


def _place(model: Path, output: Path | None, suffix: str) -> Path:
    """Returns the path of the artifact, which replaces a file at that path.

    Raises UserError where the path is a folder, a device, the model itself, or the artifact's own C
    header.
    """
    place = output or Path(f"{_name(model)}{suffix}")
    with file_errors("a path cannot be used", place):
        exists, model_exists = place.exists(), model.exists()
    if place.is_dir():
        raise UserError("the output is a folder", where=f"-o {place}", hint="name a file in it")
    if exists and not place.is_file():
        raise UserError("the output is a device or a pipe", where=f"-o {place}", hint="name a file")
    if place.suffix == ".h":
        raise UserError(
            "the C header beside the output has the same name",
            where=f"-o {place}",
            hint=f"name it {place.with_suffix(suffix)}",
        )
    if exists and model_exists and place.samefile(model):
        raise UserError(
            "the output is the model itself",
            where=f"-o {place}",
            hint="MODEL is a model to compile; tcc run takes a compiled one",
        )
    return place
