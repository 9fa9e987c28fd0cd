"""The tensors of a model by GGUF's names, such as `blk.0.attn_q.weight`."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint, StoredTensor
from tcc.frontends.weights.families import ModelFamily

# Buffers that folders may hold, and that follow from the configuration.
_BUFFERS = re.compile(r".*(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)")
# The matrix of one expert, as `model.layers.0.mlp.experts.3.up_proj.weight`.
_EXPERT = re.compile(r"(.*\.experts)\.(\d{1,6})(\.[^.]+\.[^.]+)")


def named_tensors(
    checkpoint: Checkpoint, family: ModelFamily, layers: int
) -> Mapping[str, Sequence[StoredTensor]]:
    """Returns the tensors by GGUF's names.

    A name has one tensor, or the matrices of experts in the order of their numbers. Raises
    `UserError` for a tensor that has no name in the family, for two of one name, and for experts
    that are missing.
    """
    if checkpoint.form == "gguf":
        return {name: [weight] for name, weight in checkpoint.weights.items()}
    tables = _name_tables(checkpoint, family, layers)
    tensors: dict[str, dict[int, StoredTensor]] = {}
    for name, weight in checkpoint.weights.items():
        if _BUFFERS.fullmatch(name):
            continue
        expert = _EXPERT.fullmatch(name)
        start, number, end = expert.groups() if expert else (name, "0", "")
        names = (table.get_name(start + end, (".weight", ".bias")) for table in tables)
        canonical = next(filter(None, names), None)
        if canonical is None or int(number) in tensors.setdefault(canonical, {}):
            raise unknown_tensor(checkpoint, name, family)
        tensors[canonical][int(number)] = weight
    for canonical, parts in tensors.items():
        if max(parts) >= len(parts):
            raise missing_tensor(checkpoint, f"expert {len(parts)} or less of {canonical}")
    return {name: [parts[n] for n in sorted(parts)] for name, parts in tensors.items()}


def missing_tensor(checkpoint: Checkpoint, name: str) -> UserError:
    """Returns the error to raise for a tensor that the file or folder lacks."""
    return UserError(
        "a tensor of the model is missing",
        where=f"{checkpoint.where}: {name}",
        hint="download the model again, with all of its files",
    )


def unknown_tensor(checkpoint: Checkpoint, name: str, family: ModelFamily) -> UserError:
    """Returns the error to raise for a tensor that the import of the family does not read."""
    return UserError(
        "a tensor of the model has no place in its family",
        where=f"{checkpoint.where}: {name[:200]}",
        why=f"models of the family {family.architecture} have no such part in tcc",
        hint="export the model to ONNX or with torch.export",
    )


def _name_tables(checkpoint: Checkpoint, family: ModelFamily, layers: int) -> Sequence[Any]:
    """Returns tables of the library gguf from Hugging Face's names to GGUF's.

    The second has the parts of Llama, which layers without experts have in families with experts.
    """
    if find_spec("gguf") is None:
        raise UserError(
            "folders of language models need the package gguf",
            where=checkpoint.where,
            hint="pip install 'tcc[lm]'",
        )
    gguf = import_module("gguf")
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = (family.architecture, "llama")
    return [gguf.get_tensor_name_map(kinds[name], layers) for name in names]
