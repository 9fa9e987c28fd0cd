"""Finds the source of a kernel in an artifact that was compiled with --keep-ir."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tcc.runtime.reports import InputError


def kernel_listing(
    path: Path,
    variants: Sequence[Mapping[str, Any]],
    listings: Mapping[str, str],
    kernel: str,
    form: str,
) -> tuple[str, int]:
    """Returns (source of a kernel of the artifact at `path`, number of its variant).

    `variants` are those of the manifest, and `listings` the kept sources by symbol. `kernel` is a
    symbol or a number. In an artifact of several variants the variant's number comes first, as in
    `1/0`. Kernels for GPUs are kept as Triton, kernels for CPUs as LLVM IR, of which `asm` is made.
    Raises InputError if the artifact does not keep its IR, or has no such kernel for `form`.
    """
    if not listings:
        raise InputError(
            "the artifact does not hold its kernels' source",
            where=str(path),
            hint="compile the model with --keep-ir, or inspect the ONNX file itself",
        )
    number, symbol = _variant_and_symbol(kernel, len(variants))
    if number >= len(variants):
        raise InputError(
            f"the artifact has no variant {number}",
            where=str(path),
            hint=f"its last is {len(variants) - 1}",
        )
    kept_form = "triton" if "gpu" in variants[number] else "llvm"
    if symbol in listings and form != kept_form and "triton" in (form, kept_form):
        raise InputError(
            "the kernel is not kept in this form",
            where=f"--form {form}",
            why=f"it is for {'GPUs' if kept_form == 'triton' else 'the CPU'}",
            hint=f"--form {kept_form}",
        )
    if symbol not in listings:
        raise InputError(
            f"the artifact has no kernel {kernel!r}",
            where=str(path),
            hint=f"its kernels are {next(iter(listings))} to {list(listings)[-1]}",
        )
    return listings[symbol], number


def _variant_and_symbol(kernel: str, variants: int) -> tuple[int, str]:
    """Returns the variant's number and the name under which the artifact keeps the listing."""
    place, _, name = kernel.rpartition("/")
    number = int(place) if place.isdecimal() else 0
    symbol = f"tcc_kernel_{name}" if name.isdecimal() else name
    return number, symbol if variants == 1 else f"{number}/{symbol}"
