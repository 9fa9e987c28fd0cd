"""Compiles a model for one kind of GPU and reports facts about its kernels; needs tcc.

    python -m gpu.compile_one MODEL TARGET PRECISION JOBS

The last line of the output is JSON. Its seconds count from the start of this process until the
artifact is written, as for a command. Reading the machine code comes later and does not count.
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

from gpu.exemptions import EXEMPTIONS
from gpu.observe import judge, observations, with_machine_code
from tests.lib.oracle.gpu.code_rules import CheckedKernel, contracts, matrix_families


def measure(model: Path, target: str, precision: str, jobs: int) -> dict[str, Any]:
    """Compiles a model for `target` with `jobs` processes; returns figures of the compile.

    They are the seconds of the process so far, the numbers of kernels and of distinct kernels, the
    `facts`, and the code rules that kernels break ("broken") or obey in spite of an exemption
    ("kept"). Raises TccError if the model does not compile.
    """
    options = read_options({"target": target, "precision": precision, "jobs": jobs})
    with (
        tempfile.TemporaryDirectory(prefix="tcc-gpu-compile-") as folder,
        observations() as compiled_kernels,
    ):
        compile_model(model, options, Path(folder) / "model.so")
        seconds = time.perf_counter() - START
    distinct = list(
        {
            (observation.compiled.image, observation.compiled.arch): observation
            for observation in compiled_kernels
        }.values()
    )
    kernels = with_machine_code(distinct)
    sources = [kernel.source for kernel in distinct]
    violations, stale = judge(model.stem, precision, kernels, sources, EXEMPTIONS)
    return {
        "seconds": seconds,
        "kernels": len(compiled_kernels),
        "distinct": len(distinct),
        **facts(kernels, sources),
        "broken": violations,
        "kept": stale,
    }


def facts(kernels: Sequence[CheckedKernel], sources: Sequence[str]) -> dict[str, Any]:
    """Returns facts about the kernels' machine code, by name.

    "spills" maps a kernel to its bytes of private memory. "contracts" counts kernels with matmuls.
    "matrix" counts, by family of matrix instructions, the kernels that must use it and that do.
    "registers", "shared" and "image_bytes" are the largest registers and bytes of shared memory,
    and the bytes of all images.
    """
    required = Counter(family for kernel in kernels for family in matrix_families(kernel))
    uses = Counter(family for kernel in kernels for family, _ in kernel.code.matrix)
    return {
        "spills": {
            f"{kernel.made.symbol} {source.strip()}": kernel.code.private
            for kernel, source in zip(kernels, sources, strict=True)
            if kernel.code.private
        },
        "contracts": sum(any(True for _ in contracts(kernel.kernel.body)) for kernel in kernels),
        "matrix": {f: {"must": required[f], "use": uses[f]} for f in sorted({*required, *uses})},
        "registers": max((kernel.code.registers for kernel in kernels), default=0),
        "shared": max((kernel.made.shared for kernel in kernels), default=0),
        "image_bytes": sum(len(kernel.made.image) for kernel in kernels),
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
