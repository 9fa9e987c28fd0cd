"""The names of the items of a GPU check, and the selection of items by `--only`.

An item is a model or a kernel that is run and compared. Needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence

# The models to measure. With a batch, matmuls are large enough for kernels in Gluon.
MODELS = (
    "resnet50", "bert_base", "vit_b16", "gpt2_prefill", "gpt2_decode", "bert_base.b16",
    "resnet50.b32", "vit_b16.b32",
)  # fmt: skip
# The items whose steps are timed inside a run, beside the price of each.
STEPPED = ("gpt2_decode_bf16", "resnet50.b32_bf16", "bert_base.b16_bf16")
# The name of the item that checks the communication library and a model with a collective.
COLLECTIVES = "collectives"
# Maps a task to the mode of torch.compile that it times; both modes record CUDA graphs.
TORCH_MODES = {"compiled": "reduce-overhead", "autotuned": "max-autotune"}
# Prefix of the names of kernels at small sizes.
SMALL = "small_"


def split(only: str) -> list[str]:
    """Returns the names that `--only A,B` lists."""
    return [name for name in only.split(",") if name]


def is_wanted(name: str, names: Sequence[str]) -> bool:
    """Returns True if an item's name begins with one of `names`, or if `names` is empty.

    The prefix SMALL of the item's name may be left out.
    """
    forms = (name, name.removeprefix(SMALL))
    return not names or any(form.startswith(tuple(names)) for form in forms)


def asks_for_models(only: str) -> bool:
    """Returns True if `--only` may select a model."""
    names = split(only)
    return not names or any(
        model.startswith(name) or name.startswith(model) for name in names for model in MODELS
    )
