"""The families of language models: one row for each, with its differences from Llama.

In each layer, Llama adds to its rows the attention of the normalised rows, then a gated MLP of the
normalised rows.  Queries and keys are rotated by their positions.
"""

from types import MappingProxyType

from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frozen import frozen


@frozen
class Family:
    """The differences of a family from Llama.

    `architecture` is GGUF's name, `types` are the names in the field `model_type` of config.json.
    """

    architecture: str
    types: tuple[str, ...]
    # The op that normalises rows.
    norm: str = "rms_normalization"
    # A number that GGUF files have added to the weights of norms, and folders have not.
    norm_offset: float = 0.0
    # The parts of a layer that must have a bias.  Any other part may have one.
    biases: tuple[str, ...] = ()
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
    transposed: tuple[str, ...] = ()
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


_QKV = ("attn_q", "attn_k", "attn_v")
_CONV1D = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")

_FAMILIES = (
    Family("llama", ("llama", "mistral", "mixtral"), adjacent=True),
    Family("qwen2", ("qwen2",), biases=_QKV),
    Family("qwen3", ("qwen3",), head_norms=True),
    Family("qwen2moe", ("qwen2_moe",), biases=_QKV, renormalised=False),
    Family("qwen3moe", ("qwen3_moe",), head_norms=True),
    Family("phi3", ("phi3",)),
    Family(
        "gpt2", ("gpt2",), norm="layer_normalization", biases=_CONV1D, activation="gelu",
        gated=False, learned=True, transposed=_CONV1D,
    ),
    Family(
        "gemma2", ("gemma2",), norm_offset=1.0, activation="gelu", post_norms=True, scaled=True,
        pattern=2, wide_layers=46,
    ),
    Family(
        "gemma3", ("gemma3_text",), norm_offset=1.0, activation="gelu", post_norms=True,
        head_norms=True, scaled=True, pattern=6, local_base=10000.0, wide_layers=62,
    ),
)  # fmt: skip
BY_ARCHITECTURE = MappingProxyType({family.architecture: family for family in _FAMILIES})
BY_TYPE = MappingProxyType({name: family for family in _FAMILIES for name in family.types})


def family_of(checkpoint: Checkpoint) -> Family:
    """Returns the family of a model; raises `UserError` for an unknown one."""
    in_gguf = checkpoint.form == "gguf"
    key = "general.architecture" if in_gguf else "model_type"
    table, name = BY_ARCHITECTURE if in_gguf else BY_TYPE, checkpoint.facts.get(key)
    family = table.get(name) if isinstance(name, str) else None
    if family is None:
        raise UserError(
            f"language models of the family {name!r} cannot be imported",
            where=f"{checkpoint.where}: {key}",
            why=f"tcc knows {', '.join(table)}",
            hint="export the model to ONNX or with torch.export",
        )
    return family
