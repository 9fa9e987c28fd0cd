"""The names of the items to check, and the selection by `--only`; needs only the standard
library."""

from __future__ import annotations

from collections.abc import Sequence

# In a batch of 16, matmuls are large enough for kernels in Gluon.
MODELS = ("resnet50", "bert_base", "vit_b16", "gpt2_prefill", "gpt2_decode", "bert_base.b16")
# The item that checks operations between ranks, and a model with a collective.
COLLECTIVES = "collectives"
# Maps tasks to the modes of torch.compile that they time; both modes record CUDA graphs.
TORCH_MODES = {"compiled": "reduce-overhead", "autotuned": "max-autotune"}
# Prefix of the names of kernels at small sizes.
SMALL = "small_"


def split(only: str) -> list[str]:
    """Returns the names of `--only A,B`."""
    return [name for name in only.split(",") if name]


def is_wanted(name: str, names: Sequence[str]) -> bool:
    """Returns True if an item's name begins with one of `names`, or if `names` is empty."""
    forms = (name, name.removeprefix(SMALL))
    return not names or any(form.startswith(tuple(names)) for form in forms)


def asks_for_models(only: str) -> bool:
    """Returns True if `--only` may select a model."""
    names = split(only)
    return not names or any(
        model.startswith(name) or name.startswith(model) for name in names for model in MODELS
    )
