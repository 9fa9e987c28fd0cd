"""Builds a drawn architecture as a module with seeded weights, and its inputs, at real sizes.

The configuration is the default. If its weights take more than `CAP` bytes of f32, the number of
layers is halved until they fit, then the vocabulary. Widths stay unchanged.
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

CAP = 1.2e9  # the most bytes of weights; larger architectures are reduced
TOKENS, SECONDS, IMAGE = 128, 10, 224  # the sizes of inputs for which a library has no default
_DEPTHS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip

Inputs = dict[str, Tensor]


class TooLarge(Exception):
    """Raised if the weights exceed CAP even after all halvings of layers and vocabulary."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model with its inputs.

    `inputs(seed)` draws the tensor arguments of `model`, and `constants` has its remaining
    arguments, both by name. `reductions` is a text about fields that were halved, such as
    "layers / 4", or "".
    """

    model: nn.Module
    inputs: Callable[[int], Inputs]
    constants: Mapping[str, Any]
    reductions: str


def build(entry: Entry, seed: int = 0) -> BuiltModel:
    """Returns the architecture with the weights that its constructor draws from `seed`.

    Raises TooLarge, and any error of the architecture's library.
    """
    torch.manual_seed(seed)
    return _timm(entry) if entry.registry == "timm" else _transformers(entry)


def _timm(entry: Entry) -> BuiltModel:
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

    return BuiltModel(model, inputs, {}, "")


def _transformers(entry: Entry) -> BuiltModel:
    kind = getattr(import_transformers(), entry.model)
    config, reductions = fitted(kind, entry.fields)
    model = kind(config).float().eval()
    part = getattr(model, entry.part) if entry.part else model
    parameters = inspect.signature(part.forward).parameters
    constants = {
        n: v for n, v in {"use_cache": False, "return_dict": True}.items() if n in parameters
    }
    return BuiltModel(
        part, lambda seed: _random_inputs(entry, part, config, seed), constants, reductions
    )


# ---- sizes ---------------------------------------------------------------------------------------


def weight_bytes(model: nn.Module) -> int:
    """Returns the bytes of the parameters in f32; a shared tensor counts once."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


def fitted(kind: Any, fields: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns (configuration whose model has at most CAP bytes of weights, text about halvings).

    `kind` is the model's class and `fields` the fields of its configuration. Numbers of layers are
    halved until the weights fit, then the vocabulary. Raises TooLarge if they never fit.
    """
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
    return config, ", ".join(f"{part} / {2 ** cuts.count(part)}" for part in dict.fromkeys(cuts))


def _size(kind: Any, config: Any) -> int:
    with torch.device("meta"):
        return weight_bytes(kind(config))


def halves(config: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yields (field, half of its value) for the fields of the configuration among `names`.

    A field is left out if the half is below 1, or below 4,096 for a vocabulary. For an inner
    configuration with such fields, the value is a dict of its changes.
    """
    values = config.to_dict()
    for name in names:
        minimum = 4096 if name == "vocab_size" else 1
        if isinstance(values.get(name), int) and values[name] // 2 >= minimum:
            yield name, values[name] // 2
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None and (changes := dict(halves(inner, names))):
            yield name, {"model_type": inner.model_type, **changes}


def _merged(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in changes.items():
        inner = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if inner else value
    return merged


# ---- inputs --------------------------------------------------------------------------------------


def _random_inputs(entry: Entry, model: nn.Module, config: Any, seed: int) -> Inputs:
    """Returns random inputs: features of a sound, tokens, or an image.

    The registry and the name of the model's main input decide which.
    """
    rng = np.random.default_rng(seed)
    parameters = inspect.signature(model.forward).parameters
    if entry.registry == "audio":
        inputs = _sound(model, config, rng)
    elif model.main_input_name == "input_ids":
        inputs = {"input_ids": _tokens(config, rng)}
        inputs["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.int64)
    else:
        height, width = image_size(config)
        shape = (1, getattr(config, "num_channels", None) or 3, height, width)
        inputs = {model.main_input_name: torch.from_numpy(random_image(rng, shape))}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(config, rng)
    return {name: value for name, value in inputs.items() if name in parameters}


def _tokens(config: Any, rng: np.random.Generator) -> Tensor:
    size = getattr(config.get_text_config(), "vocab_size", None) or config.vocab_size
    return torch.from_numpy(rng.integers(3, size, (1, TOKENS)))


def image_size(config: Any) -> tuple[int, int]:
    """Returns (height, width) of the model's images.

    They come from the configuration, else from the image processor, else from IMAGE.
    """
    from transformers.models.auto import image_processing_auto as auto

    size = getattr(config, "image_size", None)
    if size is None:
        processors = auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(config.model_type) or {}
        kind = auto.get_image_processor_class_from_name(processors.get("torchvision") or "")
        edges = dict(getattr(kind, "size", None) or {})
        edge = edges.get("shortest_edge", IMAGE)
        size = (edges.get("height", edge), edges.get("width", edge))
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _sound(model: nn.Module, config: Any, rng: np.random.Generator) -> Inputs:
    """Returns the features of a random sound, from the model's feature extractor.

    The sound has the length of the extractor's chunks, or SECONDS if it has no such length.
    """
    import transformers
    from transformers.models.auto import feature_extraction_auto as auto

    name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise ValueError(f"no feature extractor is known for {config.model_type}")
    extractor = getattr(transformers, name)()
    rate = extractor.sampling_rate
    seconds = getattr(extractor, "chunk_length", None) or SECONDS
    features = extractor(wave(rng, rate * seconds, rate), sampling_rate=rate, return_tensors="pt")
    if model.main_input_name not in features:
        raise ValueError(f"{name} does not return {model.main_input_name}")
    return {n: v.float() if v.is_floating_point() else v for n, v in features.items()}


def wave(rng: np.random.Generator, length: int, rate: int) -> np.ndarray[Any, Any]:
    """Returns `length` samples at `rate` per second: eight tones that swell and fade, and noise.

    Almost all values are in [-1, 1].
    """
    times = np.arange(length) / rate
    sound = 0.05 * rng.standard_normal(length)
    for tone, swell, phase in zip(
        rng.uniform(80, 3500, 8), rng.uniform(0.2, 4, 8), rng.uniform(0, 6.28, 8), strict=True
    ):
        sound += 0.1 * np.sin(6.28 * tone * times) * np.sin(6.28 * swell * times + phase)
    return sound.astype(np.float32)
