"""Draws by seed the architectures that are measured, and the substitutes for exports that fail.

A draw sorts names by the SHA-256 hash of the seed and the name. So it depends neither on Python's
random generator nor on the order of a registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

SEED = 20
# The number of architectures to measure from each registry. The sum is more than the goal of 60,
# because a registry may have too few architectures.
PLACES: Mapping[str, int] = MappingProxyType(
    {"text": 20, "vision": 10, "audio": 9, "detection": 7, "segmentation": 6, "timm": 16}
)
# Maps the names of timm's families to those that transformers uses for the same architectures.
_SAME = MappingProxyType(
    {
        "vision_transformer": "vit",
        "swin_transformer": "swin",
        "swin_transformer_v2": "swinv2",
        "metaformer": "poolformer",
        "hgnet": "hgnet_v2",
    }
)

# Maps a registry to its families, and a family to its models.
Registries = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Entry:
    """An architecture: a model class of transformers, or a model of timm.

    `fields` has the fields of the configuration that differ from the default. `part` is the name of
    the model's attribute that is measured ("encoder"), or "" for the complete model.
    """

    registry: str
    family: str
    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""


FIXED = (
    Entry(
        "vision",
        "efficientnet",
        "EfficientNetForImageClassification",
        {
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "image_size": 224,
            "hidden_dim": 1280,
        },  # EfficientNet B0; the library's default configuration is B7
    ),
    Entry(
        "audio",
        "whisper",
        "WhisperModel",
        {
            "d_model": 384,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
        },  # the sizes of Whisper tiny
        "encoder",
    ),
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The result of a draw.

    `order` has the candidates of each registry in random order, after its fixed candidates.
    `places` is the number of candidates to measure from each registry.
    """

    seed: int
    versions: Mapping[str, str]
    places: Mapping[str, int]
    order: Mapping[str, Sequence[Entry]]

    def entries(self) -> Iterator[Entry]:
        for entries in self.order.values():
            yield from entries

    def members(self, failed: Collection[str]) -> list[Entry]:
        """Returns the candidates to measure: the first ones of each registry.

        Candidates whose families are in `failed` are skipped, so that later ones replace them.
        """
        members = []
        for registry, entries in self.order.items():
            candidates = [entry for entry in entries if entry.family not in failed]
            members += candidates[: self.places[registry]]
        return members


def family_of(name: str) -> str:
    """Returns the common name of a family, to which the names of all libraries are mapped."""
    plain = name.replace("-", "_").lower()
    return _SAME.get(plain, plain)


def draw(
    registries: Registries,
    versions: Mapping[str, str],
    *,
    seed: int = SEED,
    places: Mapping[str, int] = PLACES,
    fixed: Sequence[Entry] = FIXED,
) -> Candidates:
    """Draws an entry for each family.

    A family may be in several registries and have several models there. The seed decides from which
    registry it is drawn, with which model, and the order in the registry. Families of `fixed` are
    not drawn.
    """
    families = {entry.family for entry in fixed}
    order = {registry: [e for e in fixed if e.registry == registry] for registry in places}
    pairs = [(registry, family) for registry in places for family in registries[registry]]
    for registry, family in sorted(pairs, key=lambda pair: _key(seed, *pair)):
        if family not in families:
            families.add(family)
            models = registries[registry][family]
            model = min(models, key=lambda name: _key(seed, registry, family, name))
            order[registry].append(Entry(registry, family, model))
    return Candidates(seed, versions, places, order)


def _key(seed: int, *names: str) -> tuple[bytes, tuple[str, ...]]:
    return sha256(" ".join((str(seed), *names)).encode()).digest(), names


def text(candidates: Candidates) -> str:
    """Returns the text of the file that stores a draw: JSON, with a candidate on each line."""
    order = {
        r: [f"{e.family} {e.model}" for e in entries] for r, entries in candidates.order.items()
    }
    head = {
        "seed": candidates.seed,
        "versions": dict(candidates.versions),
        "places": dict(candidates.places),
    }
    return json.dumps({**head, "order": order}, indent=1) + "\n"


def read(path: Path, fixed: Sequence[Entry] = FIXED) -> Candidates:
    """Returns the draw that a file holds; raises ValueError if the file is no draw."""
    fixed_entries = {(entry.registry, entry.family): entry for entry in fixed}
    try:
        fields = json.loads(path.read_text())
        order = {
            registry: [_entry(fixed_entries, registry, *line.split(" ")) for line in lines]
            for registry, lines in fields["order"].items()
        }
        return Candidates(int(fields["seed"]), fields["versions"], fields["places"], order)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path.name} holds no draw: {error!r}") from error


def _entry(
    fixed_entries: Mapping[tuple[str, str], Entry], registry: str, family: str, model: str
) -> Entry:
    return fixed_entries.get((registry, family)) or Entry(registry, family, model)


def shard(entries: Sequence[Entry], candidates: Candidates, part: int, parts: int) -> list[Entry]:
    """Returns the entries in part number `part` (from 1) of `parts` parts.

    The position of an entry among all candidates decides its part. So it stays in its part when a
    candidate is replaced.
    """
    places = {entry.family: place for place, entry in enumerate(candidates.entries())}
    return [entry for entry in entries if places[entry.family] % parts == part - 1]


def part_of(argument: str) -> tuple[int, int]:
    """Returns the two numbers of a text like "2/7"; raises ValueError for any other text."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", argument)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"{argument!r} is no part: 2/7 is the second of seven")
    return int(match[1]), int(match[2])
