"""Lists the registries from which architectures are drawn: those of transformers and of timm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
from zoo.draw import Registries, family_of

os.environ["HF_HUB_OFFLINE"] = "1"  # weights are seeded, so nothing is downloaded

# The mappings of transformers' auto classes that form each registry.
MAPPINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text": ("MASKED_LM", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM"),
        "vision": ("IMAGE_CLASSIFICATION",),
        "audio": ("AUDIO_CLASSIFICATION", "CTC", "SPEECH_SEQ_2_SEQ"),
        "detection": ("OBJECT_DETECTION",),
        "segmentation": (
            "SEMANTIC_SEGMENTATION",
            "INSTANCE_SEGMENTATION",
            "UNIVERSAL_SEGMENTATION",
        ),
    }
)


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("transformers", "timm")}


def registries() -> Registries:
    """Returns the models of each registry by family, all sorted."""
    return {**{name: _transformers(kinds) for name, kinds in MAPPINGS.items()}, "timm": _timm()}


def _transformers(kinds: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns models by the architecture's folder.

    Several model types may share a folder (data2vec-text, data2vec-audio).
    """
    import_transformers()
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    families: dict[str, set[str]] = {}
    for kind in kinds:
        for model_type, model_names in getattr(
            modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"
        ).items():
            models = (model_names,) if isinstance(model_names, str) else model_names
            family = family_of(model_type_to_module_name(model_type).rpartition(".")[2])
            families.setdefault(family, set()).update(models)
    return {family: sorted(models) for family, models in sorted(families.items())}


def _timm() -> dict[str, list[str]]:
    """Returns models by module, without the tiny models of timm's own tests."""
    timm = import_timm()
    families: dict[str, set[str]] = {}
    for module in timm.list_modules():
        models = timm.list_models(module=module, exclude_filters="test_*")
        families.setdefault(family_of(module), set()).update(models)
    return {family: sorted(models) for family, models in sorted(families.items()) if models}


_DECLARED: list[Any] = []


def import_transformers() -> Any:
    """Returns transformers, whose models import timm and torchvision.

    Raises the error of an import.
    """
    import_timm()
    import transformers

    assert transformers.PreTrainedModel
    return transformers


def import_timm() -> Any:
    """Returns timm, even if torchvision's operators cannot be loaded (as with a CPU build of
    torch).

    torchvision then still needs the names of two operators, which no model here calls.
    """
    try:
        import timm
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)  # the declarations live as long as the library object
        import timm
    return timm
