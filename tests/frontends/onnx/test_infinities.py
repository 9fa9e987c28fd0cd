"""The attributes of IsInf select which infinities count."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx.parser
import pytest
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph


@pytest.mark.parametrize(("negative", "positive"), list(product((0, 1), repeat=2)))
def test_infinities_of_the_wanted_signs(negative: int, positive: int) -> None:
    x = np.float32([np.inf, -np.inf, np.nan, 3e38, 0])
    call = f"y = IsInf <detect_negative = {negative}, detect_positive = {positive}> (x)"
    text = f"g (float[5] x) => (bool[5] y) {{ {call} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    y = evaluate_graph(load_model(model), {"x": x})["y"]
    assert y.tolist() == [bool(positive), bool(negative), False, False, False]
