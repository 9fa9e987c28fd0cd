"""A model argument that may be an artifact or an ONNX file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tcc.artifact import read_manifest
from tcc.cli.later_modules import driver, options
from tcc.cli.progress import progress
from tcc.cli.show import say
from tcc.errors import UserError
from tcc.file_kind import is_elf
from tcc.runtime import summary_text
from tcc.temporary import temporary_folder


def is_artifact(path: Path) -> bool:
    """True where `path` names an artifact: by its suffix, or because the file is ELF."""
    return path.suffix == ".so" or is_elf(path)


def check_pair(model: Path, artifact: Path | None) -> None:
    """Raises UserError where `model` is an artifact, or `artifact` is none."""
    if is_artifact(model):
        raise UserError(
            "MODEL is an artifact, and not the model that it was compiled from",
            where=model,
            hint="give the ONNX file or .pt2 archive",
        )
    if artifact is not None:
        read_manifest(artifact)


@contextmanager
def opened_artifact(model: Path, input_texts: Sequence[str], **fields: Any) -> Iterator[Path]:
    """Yields `model` if it is an artifact, else the path of an artifact compiled from it.

    The artifact is compiled for this machine and removed afterwards. Inputs of the model that have
    a default become inputs of the artifact only if `input_texts`, the texts of `--input`, name
    them. `fields` are other fields of `Options`.
    """
    if is_artifact(model):
        yield model
        return
    compile_options = options.Options(inputs=driver.optional_inputs(model, input_texts), **fields)
    with temporary_folder() as folder:
        with progress(f"compiling {model.name}") as stage:
            output = folder / f"{model.stem}.so"
            compiled = driver.compile_model(model, compile_options, output, stage)
        record = asdict(compiled.summary)
        for variant in record["variants"]:
            say(f"compiled for {summary_text.code_text(record, variant)}", err=True)
        yield compiled.path
