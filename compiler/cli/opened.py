"""A model argument that may be an artifact or an ONNX file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcc.cli.show import progress, say, summary_line
from tcc.later import later
from tcc.temporary import temporary_folder

if TYPE_CHECKING:
    from tcc import driver, options
else:
    driver, options = later("tcc.driver"), later("tcc.options")


@contextmanager
def opened_artifact(model: Path, given: Sequence[str], **more: Any) -> Iterator[Path]:
    """`model` itself if it is a shared library, else the artifact compiled from it for this
    machine, which is removed afterwards; its inputs are also those with a default that `given`,
    the texts of `--input`, give, and `more` are other fields of `Options`."""
    if model.suffix == ".so":
        yield model
        return
    chosen = options.Options(inputs=driver.optional_inputs(model, given), **more)
    with temporary_folder() as folder:
        with progress(f"compiling {model.name}") as stage:
            output = folder / f"{model.stem}.so"
            compiled = driver.compile_model(model, chosen, output, stage)
        say(summary_line(compiled), err=True)
        yield compiled.path
