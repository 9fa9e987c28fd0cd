"""The worker that runs a model of models/ with torch.compile: MODEL.onnx INPUTS.npz THREADS.

The module is the one from which the ONNX file was exported; the file's name identifies it.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tcc.runtime.worker import Array, read_arrays, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.build import recipe
from models.export import module_arguments
from models.manifest import model_spec


def prepare(model: Path, feed: Path, threads: int) -> Callable[[], Mapping[str, Array]]:
    """Compiles a model with torch.compile; returns a function that runs it once.

    The stem of `model` is the name of a model of the manifest. The function takes its inputs from
    the file `feed` and returns the outputs by name.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(feed.parent / "inductor")
    torch.set_num_threads(threads)
    spec = model_spec(model.stem)
    compiled = torch.compile(recipe(spec).module.eval())
    arguments = module_arguments(read_arrays(feed))

    def run() -> Mapping[str, Array]:
        with torch.inference_mode():
            results = compiled(*arguments)
        tensors = [results] if isinstance(results, torch.Tensor) else _flat(results)
        return dict(zip(spec.outputs, (item.numpy() for item in tensors), strict=True))

    return run


def _flat(results: tuple[torch.Tensor | list[torch.Tensor], ...]) -> list[torch.Tensor]:
    listed = ([item] if isinstance(item, torch.Tensor) else item for item in results)
    return [tensor for group in listed for tensor in group]


if __name__ == "__main__":
    serve(prepare)
