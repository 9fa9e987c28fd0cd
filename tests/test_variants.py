"""An artifact has the right variants: parts of a target, and what they share."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from tcc.backends.gpu.backend import similar_parts
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.options import read_options
from tcc.target import CPUS, GPU_DEFAULTS, Profile, parse_target, parse_targets
from tcc.variants import check_options, lower, optimise, variant_backends

from tests.e2e.gpu.small_models import MODELS


def v3() -> Profile:
    return CPUS["x86-64-v3"]


def parts(text: str) -> list[tuple[str, ...]]:
    return [part.archs for part in similar_parts(parse_target(text, "host", v3))]


def test_gpus_of_one_kind_and_about_one_size_share_a_schedule() -> None:
    # at least 164 KiB of shared memory, or 99 KiB
    assert parts("cuda") == [("sm_80", "sm_90", "sm_100"), ("sm_86", "sm_89", "sm_120")]
    # 110, 304, 256, 96 and 32 compute units; gfx950 has 160 KiB of shared memory, the others 64
    assert parts("rocm") == [("gfx90a",), ("gfx942",), ("gfx950",), ("gfx1100",), ("gfx1200",)]
    assert parts("cuda:sm_90,sm_80") == [("sm_90", "sm_80")]
    for text in ("cuda", "rocm"):
        for part in similar_parts(parse_target(text, "host", v3)):
            assert part.archs == tuple(gpu.arch for gpu in part.gpus)


def lowered(model: onnx.ModelProto, target: str) -> list[str]:
    """Returns the targets of the programs that are compiled."""
    options, trace = read_options({"target": target}), Trace()
    graph = load_model(model, {})
    codes = variant_backends(parse_targets(target, "host", v3), options, 0)
    return [
        code.target.text for code, _ in lower(codes, optimise(graph, codes, options, trace), trace)
    ]


def test_gpus_for_which_the_same_comes_out_share_a_variant() -> None:
    assert lowered(MODELS["network"](), "rocm+cpu") == [
        "rocm:gfx90a,gfx942,gfx950,gfx1100,gfx1200", "cpu:x86-64 (x86-64-v3)",
    ]  # fmt: skip
    assert lowered(MODELS["attention"](), "rocm+cpu") == [
        "rocm:gfx90a,gfx950", "rocm:gfx942", "rocm:gfx1100,gfx1200", "cpu:x86-64 (x86-64-v3)",
    ]  # fmt: skip
    several = lowered(MODELS["attention"](), "rocm")
    assert 1 < len(several) < 5
    assert sorted(",".join(t.partition(":")[2] for t in several).split(",")) == sorted(
        GPU_DEFAULTS["rocm"]
    )
    # vendors never share, because their kernels are compiled differently
    assert len(lowered(MODELS["network"](), "cuda:sm_80+rocm:gfx90a")) == 2


@pytest.mark.parametrize(
    ("target", "options", "what"),
    [
        ("cpu", {"precision": "tf32"}, "precision of GPUs"),
        ("cpu", {"allow_host": True}, "host's already"),
        ("cuda+rocm", {"machine": "machine.json"}, "not GPUs"),
    ],
)
def test_options_that_no_part_takes_are_refused(
    target: str, options: dict[str, Any], what: str
) -> None:
    parsed_options = read_options({"target": target, **options})
    with pytest.raises(UserError, match=what):
        check_options(parsed_options, parse_targets(target, "host", v3))
    check_options(parsed_options, parse_targets("cuda+cpu", "host", v3))
