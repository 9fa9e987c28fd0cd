"""Processors that tests compile for and run on."""

from __future__ import annotations

from tcc.backends.cpu.detect import detect
from tcc.target import parse_target


def distinct(*cpus: str) -> tuple[str, ...]:
    """Those for which a kernel becomes other code: of equal instruction sets the first stands for
    all."""
    found: dict[tuple[object, ...], str] = {}
    for cpu in cpus:
        profile = parse_target("cpu", cpu, detect).profile
        found.setdefault((profile.arch, profile.features, profile.vector_bits, profile.tile), cpu)
    return tuple(found.values())
