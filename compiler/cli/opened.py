"""A model argument that may be an artifact or an ONNX file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tcc.cli.show import progress, say, summary_line
from tcc.driver import compile_model
from tcc.options import Options


@contextmanager
def opened_artifact(model: Path, options: Options | None = None) -> Iterator[Path]:
    """`model` itself if it is a shared library, else the artifact compiled from it for this
    machine (with `options`), which is removed afterwards."""
    if model.suffix == ".so":
        yield model
        return
    with TemporaryDirectory(prefix="tcc-") as folder:
        with progress(f"compiling {model.name}") as stage:
            output = Path(folder) / f"{model.stem}.so"
            compiled = compile_model(model, options or Options(), output, stage)
        say(summary_line(compiled), err=True)
        yield compiled.path
