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

# Maps a registry to the mappings of transformers' auto classes that list its models.
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
    """Returns the model classes of the mappings `kinds`, by family.

    A family is a folder of transformers, which several model types may share (data2vec-text,
    data2vec-audio).
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
    """Returns timm's models by family, without the tiny models of timm's own tests.

    A family is a module of timm.
    """
    timm = import_timm()
    families: dict[str, set[str]] = {}
    for module in timm.list_modules():
        models = timm.list_models(module=module, exclude_filters="test_*")
        families.setdefault(family_of(module), set()).update(models)
    return {family: sorted(models) for family, models in sorted(families.items()) if models}


_DECLARED: list[Any] = []


def import_transformers() -> Any:
    """Imports timm, then transformers, whose models need timm; returns transformers.

    Raises the error of an import that fails.
    """
    import_timm()
    import transformers

    assert transformers.PreTrainedModel
    return transformers


def import_timm() -> Any:
    """Imports and returns timm, even if torchvision cannot load its operators.

    With a CPU build of torch, it may lack two operators and then fail to import. They are declared
    here without code, because no model of the list calls them.
    """
    try:
        import timm
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)  # torch drops the declarations when this object is collected
        import timm
    return timm
