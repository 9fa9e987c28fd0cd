"""Returns the code of an artifact's kernels, if it was compiled with --keep-ir."""

from pathlib import Path
from typing import Any

from tcc.artifact import input_errors, read_listings, read_manifest
from tcc.cli.kernels.facts import reading_manifest
from tcc.cli.later_modules import compile
from tcc.runtime import kernel_listing as runtime_listings
from tcc.target import CPU_TRIPLES, Target, cpu_profile


def kernel_listing(path: Path, kernel: str, form: str) -> str:
    """Returns the code of a kernel of the artifact at `path`, as `llvm`, `triton`, or `asm`
    (compiled LLVM IR).

    `kernel` is its symbol or number. In an artifact of several variants the variant's number comes
    first, as in `1/0`. Kernels for GPUs are Triton, kernels for CPUs LLVM IR. Raises UserError if
    the artifact does not keep its IR, or has no such kernel in this form.
    """
    manifest = read_manifest(path)
    with input_errors():
        text, number = runtime_listings.kernel_listing(
            path, manifest["variants"], read_listings(path), kernel, form
        )
    return compile.kernel_assembly(text, _target(manifest, number, path)) if form == "asm" else text


def _target(manifest: dict[str, Any], number: int, path: Path) -> Target:
    """Returns the target of a variant's code, without cache sizes: they do not affect assembly."""
    with reading_manifest(path, "name its target"):
        variant = manifest["variants"][number]
        cpu, triple = variant["cpu"], manifest["target"]["triple"]
        arch = next(a for a, cpu_triple in CPU_TRIPLES.items() if cpu_triple == triple)
        features = map(str, variant["features"])
        profile = cpu_profile(arch, str(cpu), features, l1=0, l2=0, l3=0)
    return Target("cpu", (arch,), triple, profile)
