"""Which architectures are measured: a draw by seed, and what replaces an export that fails.

The order of a draw is that of SHA-256 over the seed and the names, so it depends on nothing else:
not on Python's generator, not on the order of a registry.
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
# Places of each registry; more than 60 in all, for a registry may run out of architectures.
PLACES: Mapping[str, int] = MappingProxyType(
    {"text": 20, "vision": 10, "audio": 9, "detection": 7, "segmentation": 6, "timm": 16}
)
# Families that timm names otherwise than transformers does.
_SAME = MappingProxyType(
    {
        "vision_transformer": "vit",
        "swin_transformer": "swin",
        "swin_transformer_v2": "swinv2",
        "metaformer": "poolformer",
        "hgnet": "hgnet_v2",
    }
)

# registry -> family -> its models
Registries = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One architecture: a model class of transformers, or a model of timm.

    `fields` are those of the configuration that are not the default, `part` the attribute of the
    model that is taken instead of the whole.
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
        },  # B0; the default is B7
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
        },  # tiny
        "encoder",
    ),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw: the candidates of each registry in their order, the fixed ones first."""

    seed: int
    versions: Mapping[str, str]
    places: Mapping[str, int]
    order: Mapping[str, Sequence[Entry]]

    def entries(self) -> Iterator[Entry]:
        for listed in self.order.values():
            yield from listed

    def members(self, failed: Collection[str]) -> list[Entry]:
        """Those that are measured: in each registry the first ones whose family has not failed."""
        found = []
        for registry, listed in self.order.items():
            standing = [entry for entry in listed if entry.family not in failed]
            found += standing[: self.places[registry]]
        return found


def family_of(name: str) -> str:
    """A family by one name, whichever library names it."""
    plain = name.replace("-", "_").lower()
    return _SAME.get(plain, plain)


def draw(
    registries: Registries,
    versions: Mapping[str, str],
    *,
    seed: int = SEED,
    places: Mapping[str, int] = PLACES,
    fixed: Sequence[Entry] = FIXED,
) -> Drawn:
    """Each family once: in one registry, with one of its models there, both by the seed.

    A family of `fixed` is drawn no more.
    """
    seen = {entry.family for entry in fixed}
    order = {registry: [e for e in fixed if e.registry == registry] for registry in places}
    pairs = [(registry, family) for registry in places for family in registries[registry]]
    for registry, family in sorted(pairs, key=lambda pair: _key(seed, *pair)):
        if family not in seen:
            seen.add(family)
            models = registries[registry][family]
            model = min(models, key=lambda name: _key(seed, registry, family, name))
            order[registry].append(Entry(registry, family, model))
    return Drawn(seed, versions, places, order)


def _key(seed: int, *names: str) -> tuple[bytes, tuple[str, ...]]:
    return sha256(" ".join((str(seed), *names)).encode()).digest(), names


def text(drawn: Drawn) -> str:
    """The file of a draw: JSON, one candidate a line."""
    order = {r: [f"{e.family} {e.model}" for e in listed] for r, listed in drawn.order.items()}
    head = {"seed": drawn.seed, "versions": dict(drawn.versions), "places": dict(drawn.places)}
    return json.dumps({**head, "order": order}, indent=1) + "\n"


def read(path: Path, fixed: Sequence[Entry] = FIXED) -> Drawn:
    """The draw that a file holds; raises ValueError where it is none."""
    known = {(entry.registry, entry.family): entry for entry in fixed}
    try:
        held = json.loads(path.read_text())
        order = {
            registry: [_entry(known, registry, *line.split(" ")) for line in lines]
            for registry, lines in held["order"].items()
        }
        return Drawn(int(held["seed"]), held["versions"], held["places"], order)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path.name} holds no draw: {error!r}") from error


def _entry(known: Mapping[tuple[str, str], Entry], registry: str, family: str, model: str) -> Entry:
    return known.get((registry, family)) or Entry(registry, family, model)


def shard(entries: Sequence[Entry], drawn: Drawn, part: int, parts: int) -> list[Entry]:
    """Those of part `part` (from 1) of `parts`: by their place in the file, so that a replacement
    moves no other one to another part."""
    number = {entry.family: n for n, entry in enumerate(drawn.entries())}
    return [entry for entry in entries if number[entry.family] % parts == part - 1]


def part_of(given: str) -> tuple[int, int]:
    """`2/7` as numbers; raises ValueError for anything else."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", given)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"{given!r} is no part: 2/7 is the second of seven")
    return int(found[1]), int(found[2])
