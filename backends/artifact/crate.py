"""Rust text of a model's ports: a constant for each, whose type has the type of the elements.

pub mod input {
    use super::*;
    /// 0: f32[rows,4]
    pub const X: Input<F32> = Input::new(0, "x", &[-1, 4]);
}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tcc.backends.artifact.identifiers import transliterated
from tcc.ir.types import DTYPES
from tcc.zipped import zip_equal


def port_constants(ports: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the modules `input` and `output`; `ports` has the entries of `describe_ports`.

    An output that updates an input in place has no constant, nor has a list. A program uses lists
    by the functions of tcc.h.
    """
    states = {port["state"] for port in ports["outputs"]}
    inputs = ["StateInput" if n in states else "Input" for n in range(len(ports["inputs"]))]
    outputs = ["Output" if port["state"] < 0 else "" for port in ports["outputs"]]
    return _module("input", inputs, ports["inputs"]) + _module("output", outputs, ports["outputs"])


def _module(module: str, kinds: Sequence[str], ports: Sequence[Mapping[str, Any]]) -> str:
    constants: dict[str, str] = {}
    for n, (kind, port) in enumerate(zip_equal(kinds, ports)):
        dtype = port["dtype"]
        if not kind or dtype not in DTYPES:
            continue
        constant = transliterated(port["name"]).upper()
        constant = constant if constant[:1].isalpha() else f"{module.upper()}_{constant or n}"
        while constant in constants:
            constant += f"_{n}"
        name, text = map(_rust_text, (port["name"], f"{n}: {dtype}{port['text']}"))
        sizes = ", ".join("-1" if size is None else str(size) for size in port["shape"])
        constants[constant] = (
            f"    /// {text}\n    pub const {constant}: {kind}<{dtype.upper()}> = "
            f'{kind}::new({n}, "{name}", &[{sizes}]);\n'
        )
    body = "".join(constants.values())
    return f"\npub mod {module} {{\n    #[allow(unused_imports)]\n    use super::*;\n{body}}}\n"


def _rust_text(text: str) -> str:
    """Returns the content of a Rust string literal, which has ASCII characters alone."""
    return "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\u{{{ord(c):x}}}" for c in text)
