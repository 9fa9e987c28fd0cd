"""Tests of PTX that GPUs newer than the compiled architectures can load."""

from __future__ import annotations

import re

import pytest
from tcc.backends.gpu.code import portable_profile
from tcc.backends.gpu.source import kernel_source
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import BIG_MATMUL, TEXTS

pytestmark = NEEDS_TRITON


@pytest.mark.parametrize(
    ("listed", "arch"),
    [
        ("sm_90", "sm_80"),
        ("sm_100 sm_120", "sm_80"),
        ("sm_80 sm_90", "sm_80"),
        ("sm_89 sm_80 sm_90", "sm_89"),
        ("sm_86", "sm_86"),
    ],
)
def test_ptx_is_for_the_newest_architecture_that_others_can_follow(listed: str, arch: str) -> None:
    found = portable_profile([GPUS[f"cuda:{name}"] for name in listed.split()])
    assert found.arch == arch
    # This is the least shared memory: that of sm_86, sm_89 and sm_120.
    assert found.shared == 101376


def test_ptx_takes_less_shared_memory_where_fewer_stages_do_that() -> None:
    hopper, portable = GPUS["cuda:sm_90"], portable_profile([GPUS["cuda:sm_90"]])
    sources = [
        kernel_source(parse_kernel(text), name, warps=8, stages=stages, dot="ieee")
        for name, text, stages in (("big", BIG_MATMUL, 6), ("softmax", TEXTS["softmax"], 2))
    ]
    made = compile_kernels(sources, [hopper], 1, [portable])
    for source, (exact, assembled) in zip(sources, made, strict=True):
        assert exact.image.startswith(b"\x7fELF")
        assert re.search(rb"^\.target sm_80$", assembled.image, re.MULTILINE)
        assert assembled.image.decode() == assembled.assembly
        assert f".entry {source.name}(" in assembled.assembly
        assert assembled.params == exact.params
        assert (assembled.registers, assembled.private) == (0, 0)
        assert assembled.shared <= portable.shared
    big = made[0]
    assert big[0].shared > portable.shared
    assert big[1].stages < big[0].stages
