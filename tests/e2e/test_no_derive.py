"""Contractions of several operands, compiled in the model's order (--no-derive), agree with f64."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import onnx
import pytest
import tcc

SIZES = (1, 2, 3, 7, 8, 16, 40, 64)
MOST = 1 << 24  # the most multiplications of an equation


def chains(seed: int, count: int) -> list[tuple[str, dict[str, int]]]:
    """Returns `count` random equations of three to five matrices in a chain, with the sizes of
    their letters."""
    draw = Random(seed)
    equations = []
    while len(equations) < count:
        letters = "abcdef"[: draw.randint(4, 6)]
        sizes = {letter: draw.choice(SIZES) for letter in letters}
        pairs = [a + b for a, b in pairwise(letters)]
        factors = [pair[::-1] if draw.random() < 0.2 else pair for pair in pairs]
        if np.prod(list(sizes.values())) <= MOST:
            equations.append((f"{','.join(factors)}->{letters[0]}{letters[-1]}", sizes))
    return equations


# In these, an operand is packed before the sum loops on which it does not depend.
KNOWN = [
    ("ab,bc,cd,de->ae", {"a": 40, "b": 64, "c": 8, "d": 2, "e": 8}),
    ("ab,bc,cd,de,ef->af", {"a": 40, "b": 2, "c": 2, "d": 16, "e": 64, "f": 16}),
]


@pytest.mark.parametrize("equations", [KNOWN, chains(47, 8)], ids=["known", "drawn"])
def test_chains_of_matrices_in_the_models_order(
    equations: list[tuple[str, dict[str, int]]],
) -> None:
    rng = np.random.default_rng(5)
    feeds, nodes, inputs, outputs = {}, [], [], []
    for n, (equation, sizes) in enumerate(equations):
        names = []
        for k, factor in enumerate(equation.split("->")[0].split(",")):
            shape = [sizes[letter] for letter in factor]
            names.append(f"x{n}_{k}")
            feeds[names[-1]] = rng.standard_normal(shape).astype(np.float32)
            inputs.append(f"float[{', '.join(map(str, shape))}] {names[-1]}")
        nodes.append(f'y{n} = Einsum <equation = "{equation}"> ({", ".join(names)})')
        outputs.append(f"float[] y{n}")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g ({", ".join(inputs)}) => ({", ".join(outputs)}) {{ {" ".join(nodes)} }}"""
    )
    results = tcc.compile(model, derive=False, jobs=1).run(feeds)
    for n, (equation, _) in enumerate(equations):
        count = len(equation.split("->")[0].split(","))
        factors = [feeds[f"x{n}_{k}"].astype(np.float64) for k in range(count)]
        due = np.einsum(equation, *factors, optimize=True)
        magnitude = np.einsum(equation, *map(np.abs, factors), optimize=True)
        error = np.abs(results[f"y{n}"] - due) / np.maximum(magnitude, 1e-30)
        assert error.max() < 1e-5, equation
