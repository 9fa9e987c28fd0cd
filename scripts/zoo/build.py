"""A drawn architecture as a module with seeded weights, and its inputs, at real sizes.

The configuration is the default one.  Where its weights would take more than `CAP` bytes of f32,
layers are halved until they fit, then the vocabulary; widths are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from zoo.draw import Entry
from zoo.registries import import_timm, import_transformers

from models.inputs import random_image

CAP = 1.2e9  # bytes
TOKENS, SECONDS, IMAGE = 128, 10, 224  # where nothing says otherwise
_DEPTHS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip

Inputs = dict[str, Tensor]


class TooLarge(Exception):
    """No halving brings the weights below the cap."""


@dataclass(frozen=True, slots=True)
class Built:
    """`inputs` draws the arguments of `model` by a seed, `constants` are further ones, `cut` says
    what was halved."""

    model: nn.Module
    inputs: Callable[[int], Inputs]
    constants: Mapping[str, Any]
    cut: str


def build(entry: Entry, seed: int = 0) -> Built:
    """The architecture with its constructor's weights, drawn by `seed`.  Raises TooLarge, and
    whatever its library raises."""
    torch.manual_seed(seed)
    return _timm(entry) if entry.registry == "timm" else _transformers(entry)


def _timm(entry: Entry) -> Built:
    timm = import_timm()
    with torch.device("meta"):
        size = weight_bytes(timm.create_model(entry.model))
    if size > CAP:
        raise TooLarge(f"its weights take {size / 1e9:.1f} GB")
    model = timm.create_model(entry.model).eval()
    shape = (1, *model.default_cfg["input_size"])
    names = list(inspect.signature(model.forward).parameters)

    def inputs(seed: int) -> Inputs:
        return {names[0]: torch.from_numpy(random_image(np.random.default_rng(seed), shape))}

    return Built(model, inputs, {}, "")


def _transformers(entry: Entry) -> Built:
    kind = getattr(import_transformers(), entry.model)
    config, cut = fitted(kind, entry.fields)
    model = kind(config).float().eval()
    part = getattr(model, entry.part) if entry.part else model
    known = inspect.signature(part.forward).parameters
    constants = {n: v for n, v in {"use_cache": False, "return_dict": True}.items() if n in known}
    return Built(part, lambda seed: _drawn(entry, part, config, seed), constants, cut)


# ---- sizes ---------------------------------------------------------------------------------------


def weight_bytes(model: nn.Module) -> int:
    """Of f32, a shared tensor once."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


def fitted(kind: Any, fields: Mapping[str, Any]) -> tuple[Any, str]:
    """A configuration whose weights stay below the cap, and what was halved for it."""
    config = kind.config_class(**fields)
    cuts: list[str] = []
    while (size := _size(kind, config)) > CAP:
        changes: dict[str, Any] = {}
        for names in (_DEPTHS, ("vocab_size",)):
            changes = dict(halves(config, names))
            if changes:
                break
        else:
            raise TooLarge(f"its weights take {size / 1e9:.1f} GB with one layer")
        fields = _merged(fields, changes)
        config = kind.config_class(**fields)
        cuts.append("layers" if "vocab_size" not in str(changes) else "vocabulary")
    return config, ", ".join(f"{what} / {2 ** cuts.count(what)}" for what in dict.fromkeys(cuts))


def _size(kind: Any, config: Any) -> int:
    with torch.device("meta"):
        return weight_bytes(kind(config))


def halves(config: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Fields for the same configuration with half of what `names` count, at least 1 (for a
    vocabulary: 4,096); none where nothing can be halved."""
    held = config.to_dict()
    for name in names:
        least = 4096 if name == "vocab_size" else 1
        if isinstance(held.get(name), int) and held[name] // 2 >= least:
            yield name, held[name] // 2
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None and (changes := dict(halves(inner, names))):
            yield name, {"model_type": inner.model_type, **changes}


def _merged(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(fields)
    for name, value in changes.items():
        inner = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = _merged(found[name], value) if inner else value
    return found


# ---- inputs --------------------------------------------------------------------------------------


def _drawn(entry: Entry, model: nn.Module, config: Any, seed: int) -> Inputs:
    """By the main input's name: tokens, an image, or sound as the feature extractor gives it."""
    rng = np.random.default_rng(seed)
    known = inspect.signature(model.forward).parameters
    if entry.registry == "audio":
        found = _sound(model, config, rng)
    elif model.main_input_name == "input_ids":
        found = {"input_ids": _tokens(config, rng)}
        found["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.int64)
    else:
        height, width = image_size(config)
        shape = (1, getattr(config, "num_channels", None) or 3, height, width)
        found = {model.main_input_name: torch.from_numpy(random_image(rng, shape))}
    if getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = _tokens(config, rng)
    return {name: value for name, value in found.items() if name in known}


def _tokens(config: Any, rng: np.random.Generator) -> Tensor:
    size = getattr(config.get_text_config(), "vocab_size", None) or config.vocab_size
    return torch.from_numpy(rng.integers(3, size, (1, TOKENS)))


def image_size(config: Any) -> tuple[int, int]:
    """The configuration's, else that of the image processor, else 224."""
    from transformers.models.auto import image_processing_auto as auto

    size = getattr(config, "image_size", None)
    if size is None:
        named = auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(config.model_type) or {}
        kind = auto.get_image_processor_class_from_name(named.get("torchvision") or "")
        held = dict(getattr(kind, "size", None) or {})
        edge = held.get("shortest_edge", IMAGE)
        size = (held.get("height", edge), held.get("width", edge))
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _sound(model: nn.Module, config: Any, rng: np.random.Generator) -> Inputs:
    """Tones and noise of ten seconds, or of the extractor's own length."""
    import transformers
    from transformers.models.auto import feature_extraction_auto as auto

    name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise ValueError(f"no feature extractor is known for {config.model_type}")
    extractor = getattr(transformers, name)()
    rate = extractor.sampling_rate
    seconds = getattr(extractor, "chunk_length", None) or SECONDS
    found = extractor(wave(rng, rate * seconds, rate), sampling_rate=rate, return_tensors="pt")
    if model.main_input_name not in found:
        raise ValueError(f"{name} gives no {model.main_input_name}")
    return {n: v.float() if v.is_floating_point() else v for n, v in found.items()}


def wave(rng: np.random.Generator, length: int, rate: int) -> np.ndarray[Any, Any]:
    """`length` samples: eight tones that swell and fade, and noise, each at most about 1."""
    at = np.arange(length) / rate
    sound = 0.05 * rng.standard_normal(length)
    for tone, swell, phase in zip(
        rng.uniform(80, 3500, 8), rng.uniform(0.2, 4, 8), rng.uniform(0, 6.28, 8), strict=True
    ):
        sound += 0.1 * np.sin(6.28 * tone * at) * np.sin(6.28 * swell * at + phase)
    return sound.astype(np.float32)
