"""Compiles one model for one kind of GPU and says what became of its kernels.  Needs tcc.

    python -m gpu.compile_one MODEL TARGET PRECISION JOBS

The last line printed is JSON.  Its seconds count from the start of this process until the artifact
is there, as a command's would; what is read from the machine code then is not in them.
"""

import time

START = time.perf_counter()

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environment import ROOT

sys.path.append(str(ROOT))

from tcc.driver import compile_model
from tcc.errors import TccError
from tcc.options import read_options

from gpu.known import KNOWN
from gpu.observe import compiled, judge, observed
from tests.oracle.gpu.code_rules import CheckedKernel, contracts, matrix_families


def measure(model: Path, target: str, precision: str, jobs: int) -> dict[str, Any]:
    """Seconds and facts.  Raises TccError where the model does not compile."""
    options = read_options({"target": target, "precision": precision, "jobs": jobs})
    with tempfile.TemporaryDirectory(prefix="tcc-gpu-compile-") as folder, observed() as found:
        compile_model(model, options, Path(folder) / "model.so")
        seconds = time.perf_counter() - START
    different = list({(each.made.image, each.made.arch): each for each in found}.values())
    kernels = compiled(different)
    sources = [each.source for each in different]
    broken, kept = judge(model.stem, precision, kernels, sources, KNOWN)
    return {
        "seconds": seconds,
        "kernels": len(found),
        "distinct": len(different),
        **facts(kernels, sources),
        "broken": broken,
        "kept": kept,
    }


def facts(kernels: Sequence[CheckedKernel], sources: Sequence[str]) -> dict[str, Any]:
    """Of the different kernels."""
    must = Counter(family for each in kernels for family in matrix_families(each))
    used = Counter(family for each in kernels for family, _ in each.code.matrix)
    return {
        "spills": {
            f"{each.made.symbol} {source.strip()}": each.code.private
            for each, source in zip(kernels, sources, strict=True)
            if each.code.private
        },
        "contracts": sum(any(True for _ in contracts(each.kernel.body)) for each in kernels),
        "matrix": {f: {"must": must[f], "use": used[f]} for f in sorted({*must, *used})},
        "registers": max((each.code.registers for each in kernels), default=0),
        "shared": max((each.made.shared for each in kernels), default=0),
        "image_bytes": sum(len(each.made.image) for each in kernels),
    }


def main() -> int:
    """Returns the exit code."""
    model, target, precision, jobs = sys.argv[1:]
    try:
        print(json.dumps(measure(Path(model), target, precision, int(jobs))))
    except TccError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
