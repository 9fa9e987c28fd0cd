"""`tcc inspect --graph`: the kernels and buffers of an artifact, as a picture or for viewers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tcc import runtime
from tcc.artifact import input_errors, read_manifest
from tcc.cli.arrays import inputs_of
from tcc.cli.deadline import interruptible
from tcc.cli.later_modules import graph_files
from tcc.cli.later_modules import profile as profiles
from tcc.cli.opened import opened_artifact
from tcc.cli.show import say
from tcc.errors import UserError, file_errors
from tcc.later import later

if TYPE_CHECKING:
    from tcc.runtime import graph as graphs
else:
    graphs = later("tcc.runtime.graph")


def write_graph(
    model: Path,
    output: Path,
    inputs: Sequence[str],
    seed: int,
    runs: int | None,
    threads: int | None,
) -> None:
    """Writes the graph of an artifact, or of the one compiled from an ONNX file, to `output`.

    The suffix of `output` names the format. With `runs`, the artifact is run so often, on arrays
    of the texts `inputs`, for measured times; None gives predicted times. Raises UserError for a
    file that is no artifact, for another suffix, and if the files cannot be written.
    """
    with input_errors():
        graph_files.check_suffix(output)
    with opened_artifact(model, inputs) as path:
        read_manifest(path)
        profile = None
        if runs is not None:
            module = runtime.load(path, threads, error=UserError)
            arrays = inputs_of(path, module.inputs, inputs, seed)
            profile = interruptible(partial(profiles.profile, module, arrays, runs=runs))
        with input_errors(), file_errors("a graph cannot be written", output):
            files = graph_files.save_graph(graphs.graph(path, profile), output)
    for file in files:
        say(f"wrote {file}")
