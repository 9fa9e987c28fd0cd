"""Compiles a model with the tcc that is installed, and compares its results with NumPy.

It needs only tcc and a C compiler. scripts/wheel runs it in an empty environment; the workflow of
wheels runs it in the containers that build them.
"""

import numpy as np
import onnx
import tcc

TEXT = """<ir_version: 9, opset_import: ["": 17]>
    check (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { a = MatMul(x, w)  y = Softmax(a) }"""


def main() -> None:
    """Prints the version and the folder of tcc; raises AssertionError where results differ."""
    module = tcc.compile(onnx.parser.parse_model(TEXT))
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    exact = np.exp(x.astype(np.float64) @ [[1, 2], [3, 4], [5, 6]])
    exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(module(x), exact, rtol=1e-5, atol=1e-6)
    print(f"tcc {tcc.__version__} of {tcc.__path__[0]} compiles, runs and agrees with NumPy")


if __name__ == "__main__":
    main()
