"""Kernels of symbolic sizes in Triton's interpreter agree with ONNX Runtime.

The test takes half of the models, each at one random size below a block or around its end.
`scripts/gpu_kernels --open` runs all models at all sizes.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.draws import RNG
from tests.e2e.test_block_remainders import MODELS, sized
from tests.lib.agreement import assert_agree, expected, session
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.part import part

from .interpreted import InterpretedModel

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
SIZES = (1, 3, 7, 12, 15, 25, 28, 63, 65, 77)


@pytest.mark.parametrize("name", part("drawn sizes", MODELS, 2))
def test_a_drawn_size_agrees(name: str) -> None:
    model, runner = InterpretedModel(MODELS[name], "cuda:sm_90"), session(MODELS[name])
    size = int(RNG.choice(SIZES))
    feeds = {"x": RNG.standard_normal(sized(MODELS[name], size)).astype(np.float32)}
    assert_agree(model.run(feeds), expected(runner, feeds))
    assert len(model.ran) == model.kernels, "every kernel has its turn"
