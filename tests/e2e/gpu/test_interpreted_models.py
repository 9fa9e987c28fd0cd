"""Whole models whose kernels run as Triton text in Triton's interpreter agree with ONNX Runtime."""

from __future__ import annotations

from itertools import product

import pytest

from tests.lib.agreement import assert_agree, expected, session
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.part import takes_all

from .architectures import bert, inputs_of, resnet
from .interpreted import InterpretedModel

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
MODELS = {"bert": bert(1, 19, 64, 2), "resnet": resnet(1, 22, 16)}
# Schedules differ between the vendors' devices, but the text of kernels does not.
TARGETS = {"f32": "cuda:sm_90", "bf16": "rocm:gfx942"}
TOLERANCES = {"f32": 1e-4, "bf16": 2e-2}
# Each model and each precision occurs once; with `--whole` all pairs occur. `scripts/gpu_kernels`
# has more.
CASES = [("bert", "bf16"), ("resnet", "f32")]
if takes_all():
    CASES = list(product(MODELS, TARGETS))


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_model_agrees(name: str, precision: str) -> None:
    model = InterpretedModel(MODELS[name], TARGETS[precision], precision)
    feeds = inputs_of(MODELS[name])
    outputs = model.run(feeds)
    assert len(model.ran) == model.kernels, "every kernel has its turn"
    assert_agree(outputs, expected(session(MODELS[name]), feeds), TOLERANCES[precision])
