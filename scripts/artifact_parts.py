"""Compiles a model and prints a hash of each part of its artifact, which is not linked.

    python scripts/artifact_parts.py compile MODEL.onnx --target cpu --cpu x86-64-v3

`scripts/artifact_hashes --parts` runs this in a process of its own for each model and target.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tcc.backends import base
from tcc.backends.artifact.gpu_binaries import encode_images
from tcc.backends.artifact.variant import Variant
from tcc.cli.commands import main
from tcc.passes.layout.weights import WeightPart


def part_hashes(variants: Sequence[Variant]) -> dict[str, str]:
    """Returns three SHA-256 hashes: of all variants' programs, of their kernels, of their weights.

    The runtime, the header and the manifest are left out.
    """
    return {
        "programs": _digest(variant.program_bytes for variant in variants),
        "kernels": _digest(code for variant in variants for code in _code(variant)),
        "weights": _digest(
            part
            for variant in variants
            for rank in range(variant.ranks)
            for part in variant.weights_of(rank)
        ),
    }


def _code(variant: Variant) -> Iterable[bytes]:
    """Yields a variant's object files, or its images if a GPU runs its kernels."""
    yield from variant.objects
    if variant.gpu is not None:
        yield encode_images(variant.gpu)


def _digest(parts: Iterable[Any]) -> str:
    """Returns one SHA-256 of all `parts`; the length of each part is hashed too."""
    digest = hashlib.sha256()
    for part in parts:
        content = part() if isinstance(part, WeightPart) else part
        data = memoryview(content).cast("B")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _print_hashes(variants: Sequence[Variant], *_: Any, **__: Any) -> NoReturn:
    """Replaces `link_artifact` in this process: prints the hashes and ends the process."""
    print(json.dumps(part_hashes(variants)))
    sys.stdout.flush()
    os._exit(0)  # the driver treats SystemExit as an interrupt


if __name__ == "__main__":
    base.link_artifact = _print_hashes
    main()
