"""Returns the code of an artifact's kernels, if it was compiled with --keep-ir."""

from pathlib import Path
from typing import Any

from tcc.artifact import read_listings, read_manifest
from tcc.cli.kernels.facts import reading_manifest
from tcc.cli.later_modules import compile
from tcc.errors import UserError
from tcc.target import CPU_TRIPLES, Target, cpu_profile


def kernel_listing(path: Path, kernel: str, form: str) -> str:
    """Returns the code of a kernel of the artifact at `path`, as `llvm`, `triton`, or `asm`
    (compiled LLVM IR).

    `kernel` is its symbol or number. In an artifact of several variants the variant's number comes
    first, as in `1/0`. Kernels for GPUs are Triton, kernels for CPUs LLVM IR. Raises UserError if
    the artifact does not keep its IR, or has no such kernel in this form.
    """
    manifest, listings = read_manifest(path), read_listings(path)
    if not listings:
        raise UserError(
            "the artifact does not hold its kernels' source",
            where=path,
            hint="compile the model with --keep-ir, or inspect the ONNX file itself",
        )
    number, symbol = _variant_and_symbol(kernel, len(manifest["variants"]))
    if number >= len(manifest["variants"]):
        raise UserError(
            f"the artifact has no variant {number}",
            where=path,
            hint=f"its last is {len(manifest['variants']) - 1}",
        )
    kept_form = "triton" if "gpu" in manifest["variants"][number] else "llvm"
    if symbol in listings and form != kept_form and "triton" in (form, kept_form):
        raise UserError(
            "the kernel is not kept in this form",
            where=f"--form {form}",
            why=f"it is for {'GPUs' if kept_form == 'triton' else 'the CPU'}",
            hint=f"--form {kept_form}",
        )
    if symbol not in listings:
        raise UserError(
            f"the artifact has no kernel {kernel!r}",
            where=path,
            hint=f"its kernels are {next(iter(listings))} to {list(listings)[-1]}",
        )
    if form != "asm":
        return listings[symbol]
    return compile.kernel_assembly(listings[symbol], _target(manifest, number, path))


def _variant_and_symbol(kernel: str, variants: int) -> tuple[int, str]:
    """Returns the variant's number and the name under which the artifact keeps the listing."""
    place, _, name = kernel.rpartition("/")
    number = int(place) if place.isdecimal() else 0
    symbol = f"tcc_kernel_{name}" if name.isdecimal() else name
    return number, symbol if variants == 1 else f"{number}/{symbol}"


def _target(manifest: dict[str, Any], number: int, path: Path) -> Target:
    """Returns the target of a variant's code, without cache sizes: they do not affect assembly."""
    with reading_manifest(path, "name its target"):
        variant = manifest["variants"][number]
        cpu, triple = variant["cpu"], manifest["target"]["triple"]
        arch = next(a for a, cpu_triple in CPU_TRIPLES.items() if cpu_triple == triple)
        features = map(str, variant["features"])
        profile = cpu_profile(arch, str(cpu), features, l1=0, l2=0, l3=0)
    return Target("cpu", (arch,), triple, profile)
