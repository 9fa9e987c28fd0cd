"""A model argument that may be an artifact or an ONNX file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcc.cli.show import progress, say, summary_line
from tcc.driver import compile_model, optional_inputs
from tcc.options import Options
from tcc.temporary import temporary_folder


@contextmanager
def opened_artifact(model: Path, given: Sequence[str], **options: Any) -> Iterator[Path]:
    """`model` itself if it is a shared library, else the artifact compiled from it for this
    machine, which is removed afterwards; its inputs are also those with a default that `given`,
    the texts of `--input`, give, and `options` more fields of `Options`."""
    if model.suffix == ".so":
        yield model
        return
    chosen = Options(inputs=optional_inputs(model, given), **options)
    with temporary_folder() as folder:
        with progress(f"compiling {model.name}") as stage:
            output = folder / f"{model.stem}.so"
            compiled = compile_model(model, chosen, output, stage)
        say(summary_line(compiled), err=True)
        yield compiled.path
