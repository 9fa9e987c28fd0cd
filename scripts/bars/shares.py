"""Limits for the weights that a rank maps, and for the file that has the weights of all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tcc.artifact import read_manifest

from bars.figures import Figure, at_most, say
from models.build import DEFAULT_OUT, build

_MODEL = "bert_base"
# The most that a rank of so many ranks maps, relative to the weights of one rank.
_SHARES = {2: 0.55, 4: 0.30}
_ROOM = 32 << 20  # bytes that a plan allows a rank for intermediate values


def shares(folder: Path) -> Iterator[Figure]:
    """Yields the share of a model's weights that a rank maps, where memory admits no more.

    Then yields the size of the file relative to the sum of what ranks map, over all plans, with
    equal ranges counted once.
    """
    model = build(_MODEL, DEFAULT_OUT)
    model_bytes = _model_bytes(model)
    plans = []
    for ranks, share in _SHARES.items():
        say(f"{_MODEL}: planning for {ranks} ranks with {share} of the weights each")
        host = {
            "name": "a",
            "ranks": ranks,
            "memory_bytes": int(share * model_bytes) + _ROOM,
            "flops": 1e11,
        }
        cluster, plan = folder / f"cluster{ranks}.json", folder / f"plan{ranks}.json"
        cluster.write_text(
            json.dumps({"version": 1, "hosts": [host | {"flops": 1e11}], "links": []})
        )
        _tcc("plan", model, f"--ranks={ranks}", "--cluster", cluster, "-o", plan)
        plans += ["--plan", plan]
    say(f"{_MODEL}: compiling for 1, 2 and 4 ranks")
    artifact = folder / "model.so"
    _tcc("compile", model, "--ranks=1,2,4", *plans, "-o", artifact)
    variants = read_manifest(artifact)["variants"]
    ranges: dict[tuple[int, int], int] = {}
    for variant in variants:
        weights, ranks = variant["weights"], variant.get("ranks", 1)
        for offset in weights.get("offsets", [weights["offset"]]):
            ranges[offset, weights["bytes"]] = weights["bytes"]
        if ranks in _SHARES:
            ratio = weights["bytes"] / variants[0]["weights"]["bytes"]
            yield at_most(f"{_MODEL}: weights of each of {ranks} ranks", ratio, _SHARES[ranks])
    ratio = artifact.stat().st_size / sum(ranges.values())
    yield at_most(f"{_MODEL}: file over what its ranks map", ratio, 1.02)


def _model_bytes(model: Path) -> int:
    """Returns the bytes of a model file, nearly all of which are weights."""
    sizes = [path.stat().st_size for path in model.parent.glob(f"{model.name}*")]
    return sum(sizes)


def _tcc(*words: str | Path) -> None:
    command = (sys.executable, "-P", "-m", "tcc", *map(str, words))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
