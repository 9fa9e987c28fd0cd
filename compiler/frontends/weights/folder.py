"""Reads folders of Hugging Face: config.json, weights in safetensors files, tokenizer, template.

Code that a configuration names, and pickled weights, are neither run nor read.
"""

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from tcc.bounded import parse_json
from tcc.frontends.model_file import open_data
from tcc.frontends.weights.assets import GENERATION, TEMPLATE, TOKENIZER, generation
from tcc.frontends.weights.checkpoint import Checkpoint, StoredTensor, library, readable
from tcc.ir.op import Array

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_LARGEST_HEADER = 1 << 23  # bytes; a large model's has 1 MiB
# The NumPy types of elements; a bf16 element is read as its bits.
_TYPES = "F64:f8 F32:f4 F16:f2 BF16:u2 I64:i8 I32:i4 I16:i2 I8:i1 U8:u1 BOOL:?"
_FORMS = MappingProxyType(dict(form.split(":") for form in _TYPES.split()))
_HINT = f"a folder of Hugging Face has {_CONFIG} and {_WEIGHTS}, or shards with their index"
_PICKLED = (
    "its weights are pickled, and can run any code; if you trust them, transformers converts them: "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT)"
)


def read_folder(path: str | os.PathLike[str]) -> Checkpoint:
    """Returns the contents of a folder, whose tensors are read on demand.

    Raises `UserError` for a folder without config.json or safetensors files, for files that are
    damaged, contradict one another, or are links to files outside, and where the library
    safetensors is missing.
    """
    folder = _Folder(Path(path))
    with readable(path, _HINT):
        config = MappingProxyType(folder.json(_CONFIG))
        weights = folder.weights()

    def assets() -> Mapping[str, bytes]:
        with readable(path, _HINT):
            return folder.assets(config)

    return Checkpoint("folder", config, weights, assets, os.fspath(path))


class _Folder:
    """The files of a folder; methods raise ValueError with a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def weights(self) -> Mapping[str, StoredTensor]:
        """Returns the tensors of all safetensors files by name."""
        if not self._has(_INDEX):
            if not self._has(_WEIGHTS) and any(self._path.glob("*.bin*")):
                raise ValueError(_PICKLED)
            return self._tensors(_WEIGHTS)
        places = self.json(_INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise ValueError(f"{_INDEX} has no weight_map")
        weights: dict[str, StoredTensor] = {}
        for file in sorted({str(place) for place in places.values()}):
            if "/" in file:
                raise ValueError(f"{_INDEX} names {file[:80]}, which is not in the folder")
            tensors = self._tensors(file)
            names = {name for name, place in places.items() if place == file}
            if names != {*tensors}:
                name = min(names ^ {*tensors})
                raise ValueError(f"{_INDEX} and {file[:80]} differ in the tensor {name[:80]}")
            weights |= tensors
        return MappingProxyType(weights)

    def assets(self, config: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Returns the assets by name; a name is absent if the folder does not have its file."""
        assets = {name: self._bytes(name) for name in filter(self._has, (TOKENIZER, TEMPLATE))}
        template = self._optional("tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # of templates with names
            named = [item for item in template if isinstance(item, dict)]
            template = {str(t.get("name")): t.get("template") for t in named}.get("default")
        if isinstance(template, str):
            assets.setdefault(TEMPLATE, template.encode())
        tokens = {**config, **self._optional("generation_config.json")}
        ends = tokens.get("eos_token_id")
        assets[GENERATION] = generation(
            tokens.get("bos_token_id"),
            ends if isinstance(ends, list) else [ends],
            config.get("max_position_embeddings", config.get("n_positions")),
        )
        return assets

    def json(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file."""
        content = parse_json(self._bytes(name))
        if not isinstance(content, dict):
            raise ValueError(f"{name} is no JSON object")
        return content

    def _has(self, name: str) -> bool:
        return os.path.lexists(self._path / name)

    def _optional(self, name: str) -> dict[str, Any]:
        return self.json(name) if self._has(name) else {}

    def _tensors(self, name: str) -> Mapping[str, StoredTensor]:
        """Returns the tensors of a safetensors file by name, as views of the mapped file."""
        safetensors, weights = library("safetensors"), {}
        with self._opened(name) as (descriptor, data):
            stop = 8 + int.from_bytes(data[:8], "little")
            # The library checks a header, but takes memory for one that is as large as the file.
            if stop > _LARGEST_HEADER:
                raise ValueError(f"the header of {name[:80]} has {stop} bytes")
            try:
                with safetensors.safe_open(f"/proc/self/fd/{descriptor}", "numpy") as file:
                    parts = [(key, file.get_slice(key)) for key in file.offset_keys()]
                    described = [(key, part.get_dtype(), part.get_shape()) for key, part in parts]
            except safetensors.SafetensorError as error:
                raise ValueError(f"{name[:80]}: {error}") from error
        for key, type_name, shape in described:
            if type_name not in _FORMS:
                raise ValueError(f"{key[:80]} has the type {type_name}, not {', '.join(_FORMS)}")
            form, start = np.dtype(_FORMS[type_name]), stop
            stop += math.prod(shape) * form.itemsize
            # The library accepts no gaps between tensors.
            weights[key] = StoredTensor(
                key, (*shape,), type_name, partial(_array, shape, form, data[start:stop])
            )
        return weights

    def _bytes(self, name: str) -> bytes:
        with self._opened(name) as (_, data):
            return bytes(data)

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, memoryview]]:
        """Yields the descriptor and the bytes of a file."""
        descriptor = open_data(self._path / _CONFIG, name)
        try:
            yield descriptor, memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)


def _array(shape: Sequence[int], form: np.dtype[Any], data: memoryview) -> Array:
    """Returns a view of a tensor; the pages of tensors that were read before leave the memory."""
    cast(mmap.mmap, data.obj).madvise(mmap.MADV_DONTNEED)
    return np.ndarray(shape, form, data)
