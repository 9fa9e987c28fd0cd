"""Each hash of an artifact's parts depends on its own part only."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from artifact_parts import part_hashes
from tcc.backends.artifact.variant import Variant
from tcc.ir.program import Program

PROGRAM = Program((), (), 0, (), ("kernel",), 0, 0)
VARIANT = Variant("cpu", PROGRAM, weights=(b"ab", b"c"), objects=(b"code",))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("programs", replace(VARIANT, program=replace(PROGRAM, scratch=1))),
        ("kernels", replace(VARIANT, objects=(b"Code",))),
        ("weights", replace(VARIANT, weights=(b"a", b"bc"))),
    ],
)
def test_a_hash_follows_its_part_alone(part: str, other: Variant) -> None:
    before, after = part_hashes([VARIANT]), part_hashes([other])
    assert {name for name in before if before[name] != after[name]} == {part}


def test_facts_listings_and_needs_are_left_out() -> None:
    other = replace(VARIANT, facts={"cpu": "x"}, listings={"kernel": "text"}, target="cuda")
    assert part_hashes([VARIANT]) == part_hashes([other])
