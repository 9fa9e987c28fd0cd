"""The families of language models: their differences from Llama, and the keys of their facts.

In each layer, Llama adds to its rows the attention of the normalised rows, then a gated MLP of the
normalised rows.  Queries and keys are rotated by their positions.

families.json has the tables, by these names:

    families         one row for each family, with the fields of `ModelFamily`
    keys             GGUF's key of a fact, without the architecture -> the keys of config.json
    implied          GGUF's keys of facts that follow from the shapes of tensors
    only             keys of config.json, and the only values that tcc supports
    activations      names of config.json -> names here; "gelu" is approximated by tanh
    rotary           GGUF's keys -> the names of Hugging Face's `rope_parameters`
    rotary_tensors   GGUF's tensors -> the same
    rotary_fields    forms of rotary embeddings, and the parameters that they have
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frozen import entity


@entity
class ModelFamily:
    """The differences of a family from Llama.

    `architecture` is GGUF's name, `types` are the names in the field `model_type` of config.json.
    """

    architecture: str
    types: Sequence[str]
    # The op that normalises rows.
    norm: str = "rms_normalization"
    # A number that GGUF files have added to the weights of norms, and folders have not.
    norm_offset: float = 0.0
    # The parts of a layer that must have a bias.  Any other part may have one.
    biases: Sequence[str] = ()
    activation: str = "silu"
    # The activated rows are multiplied by those of a second matmul.
    gated: bool = True
    # The heads of queries and keys are normalised.
    head_norms: bool = False
    # The results of attention and of the MLP are normalised before they are added.
    post_norms: bool = False
    # GGUF files order the rows of queries and keys so that the elements of a rotated pair adjoin.
    adjacent: bool = False
    # Positions have learned rows, which are added to those of the tokens; nothing is rotated.
    learned: bool = False
    # The matrices that folders store as [in, out].
    transposed: Sequence[str] = ()
    # Rows of tokens are multiplied by the root of their width.
    scaled: bool = False
    # Layers 1, 2, ... see a window of keys, except for the multiples of `pattern`.
    pattern: int = 0
    # The rotary base of layers with a window, where a GGUF file has none.
    local_base: float = 0.0
    # The weights of a row's experts are divided by their sum.
    renormalised: bool = True
    # GGUF files have no scale of scores.  It is 1 / sqrt(head width), but 1 / sqrt(width / heads)
    # in the model with this number of layers (llama.cpp, src/models, knows it by this number too).
    wide_layers: int = 0


_PATH = Path(__file__).with_name("families.json")
TABLES: Mapping[str, Any] = MappingProxyType(json.loads(_PATH.read_text(encoding="utf-8")))
_FAMILIES = tuple(ModelFamily(**row) for row in TABLES["families"])


def family_of(checkpoint: Checkpoint) -> ModelFamily:
    """Returns the family of a model; raises `UserError` for an unknown one."""
    if checkpoint.form == "gguf":
        key, table = "general.architecture", {f.architecture: f for f in _FAMILIES}
    else:
        key, table = "model_type", {name: f for f in _FAMILIES for name in f.types}
    name = str(checkpoint.facts.get(key))
    if name not in table:
        raise UserError(
            f"language models of the family '{name[:80]}' cannot be imported",
            where=f"{checkpoint.where}: {key}",
            why=f"tcc knows {', '.join(table)}",
            hint="export the model to ONNX or with torch.export",
        )
    return table[name]
