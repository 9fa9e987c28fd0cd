"""Names of what is checked, and which of them are asked for.  Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

# In a batch of 16 products are large enough for kernels in Gluon.
MODELS = ("resnet50", "bert_base", "vit_b16", "gpt2_prefill", "gpt2_decode", "bert_base.b16")
# Operations between ranks, and a model with one.
COLLECTIVES = "collectives"
# The modes of torch.compile that are timed, by task; both record CUDA graphs.
TORCH_MODES = {"compiled": "reduce-overhead", "autotuned": "max-autotune"}
# Before the names of kernels of a small pass.
SMALL = "small_"


def split(only: str) -> list[str]:
    """The names of `--only A,B`."""
    return [name for name in only.split(",") if name]


def is_wanted(name: str, names: Sequence[str]) -> bool:
    """Whether an item's name begins with one of `names`, of which none stands for all."""
    both = (name, name.removeprefix(SMALL))
    return not names or any(each.startswith(tuple(names)) for each in both)


def asks_for_models(only: str) -> bool:
    """Whether some model may be among what `--only` names."""
    names = split(only)
    return not names or any(
        model.startswith(name) or name.startswith(model) for name in names for model in MODELS
    )
