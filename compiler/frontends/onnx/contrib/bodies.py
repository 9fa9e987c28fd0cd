"""com.microsoft's operators that standard operators can express: bodies in ONNX's syntax,
inlined."""

from functools import partial

from onnx import FunctionProto, parser
from tcc.frontends.onnx.context import Converter, Converters, NodeContext
from tcc.frontends.onnx.functions import call
from tcc.frontends.operand import Operands, Refusal

_HEAD = '<domain: "com.microsoft", opset_import: ["" : 21, "com.microsoft" : 1]>'
_BODIES = """
Trilu <upper> (x, k) => (y) { y = Trilu <upper: int = @upper> (x, k) }
GatherND (x, indices) => (y) { y = GatherND (x, indices) }
Unique (x) => (y, places, counts) { y, first, places, counts = Unique <sorted = 0> (x) }
ExpandDims (x, axis) => (y) {
    shape = Constant <value_ints = [1]> () whole = Cast <to = 7> (axis)
    axes = Reshape (whole, shape) y = Unsqueeze (x, axes) }
BiasAdd (x, bias, skip) => (y) { total = Add (x, bias) y = Add (total, skip) }
GemmFastGelu (x, w, bias) => (y) { z = MatMul (x, w) y = com.microsoft.FastGelu (z, bias) }
MatMulInteger16 (a, b) => (y) {
    wide = Cast <to = 6> (a) other = Cast <to = 6> (b) y = MatMul (wide, other) }
QLinearWhere (c, x, xs, xz, y, ys, yz, zs, zz) => (z) {
    a = DequantizeLinear (x, xs, xz) b = DequantizeLinear (y, ys, yz)
    found = Where (c, a, b) z = QuantizeLinear (found, zs, zz) }
"""


def _inlined(ctx: NodeContext, *, body: FunctionProto) -> Operands:
    unknown = {a.name for a in ctx.node.attribute} - set(body.attribute)
    if unknown:
        raise Refusal(f"attribute {min(unknown)[:200]} is not supported")
    return call(ctx, body)


def _read() -> dict[str, Converter]:
    texts = _BODIES.strip().replace("\n    ", " ").splitlines()
    bodies = (parser.parse_function(f"{_HEAD} {text}") for text in texts)
    return {body.name: partial(_inlined, body=body) for body in bodies}


CONVERTERS: Converters = _read()
