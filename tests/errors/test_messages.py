"""The messages that users see are compared word for word.

Each case runs the command in a new folder. The expected text is in `messages/NAME.txt`: the exit
code, then stderr. `TCC_UPDATE_GOLDENS=1 scripts/test tests/errors` rewrites the files.
"""

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tcc import cli

GOLDENS = Path(__file__).with_name("messages")


def model(*nodes: onnx.NodeProto, opset: int = 17) -> bytes:
    """Returns a model from input x f32[2,3] to output y, with the given nodes."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "broken", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def node(
    op: str, inputs: str, outputs: str, name: str = "", domain: str = "", **attributes: int
) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name, domain=domain, **attributes)


GOOD = model(node("Relu", "x", "y"))
UNKNOWN = model(
    node("Frobnicate", "x", "a", "layer1/frob"),
    node("Relu", "a", "b", "layer1/relu"),
    node("Frobnicate", "b", "c", "layer2/frob"),
    node("Sparkle", "c", "y", "head", domain="acme"),
)
EXTERNAL = onnx.load_model_from_string(GOOD)
EXTERNAL.graph.initializer.add(
    name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL
).external_data.add(key="location", value="../../secret")
EXTERNAL.graph.node.add(op_type="Add", input=["y", "w"], output=["z"])
# The sum of a [n, 1, p] and b [m, 1, p], and windows of 5 over the sum.
SYMBOLIC = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 17]>
    symbolic (float[n, 1, p] a, float[m, 1, p] b) => (float[k, 1, q] y)
    <float[1, 1, 5] w = {1, 2, 3, 4, 5}> { c = Add(a, b)  y = Conv(c, w) }"""
)
SYMBOLIC.graph.node[0].name, SYMBOLIC.graph.node[1].name = "sum", "windows"
SYMBOLIC_FILE = (("m.onnx", SYMBOLIC.SerializeToString()),)
GOOD_FILE = (("m.onnx", GOOD),)
# Ranks sum x if their own sum is below zero, and gather it in groups of two and of four.
GROWING = (
    (
        "m.onnx",
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["": 17]>
            growing (float[2, p] x, float[2, 1] new) => (float[2, q] y, int64[2] n)
            { y = Concat <axis = 1> (new, x)  n = Shape (y) }"""
        ).SerializeToString(),
    ),
)
COLLECTIVE = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
    collective (float[2, 3] x) => (float[2, 3] y) {{ {} }}"""
DIFFERENT = COLLECTIVE.format("""
    zero = Constant <value_float = 0.0> ()  own = ReduceSum <keepdims = 0> (x)
    below = Less(own, zero)
    y = If (below) <then_branch = then () => (float[2, 3] a) { a = com.microsoft.AllReduce(x) },
                    else_branch = other () => (float[2, 3] b) { b = Neg(x) }>""")
GROUPS = COLLECTIVE.format("""
    a = com.microsoft.AllGather <group_size = 2> (x)
    b = com.microsoft.AllGather <group_size = 4> (x)
    s = ReduceSum(a)  t = ReduceSum(b)  u = Add(s, t)  y = Add(u, x)""")

RANDOM = """<ir_version: 9, opset_import: ["": 17]>
    random (float[2, 3] x) => (float[2, 3] y) {{ y = RandomNormalLike {} (x) }}"""


def parsed(text: str, *names: str) -> tuple[tuple[str, bytes], ...]:
    """Returns the model of a text as a file, with the given names for its nodes."""
    proto = onnx.parser.parse_model(text)
    for graph_node, name in zip(proto.graph.node, names, strict=False):
        graph_node.name = name
    return (("m.onnx", proto.SerializeToString()),)


def sample(*shape: int, value: float = 1) -> bytes:
    """Returns the bytes of `a.npy`, a sample of equal values."""
    stream = io.BytesIO()
    np.save(stream, np.full(shape, value, np.float32))
    return stream.getvalue()


@dataclass(frozen=True)
class Case:
    """One command line, and the files that exist in its folder."""

    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()


ELF_FILE = (("m.so", b"\x7fELF\x02\x01\x01" + bytes(120)),)
QUANTIZE = ("quantize", "m.onnx", "-o", "q.onnx", "--data")
ZIP = b"PK\3\4" + bytes(60)

CASES = {
    "compile-missing-file": Case(("compile", "absent.onnx")),
    "compile-unknown-target": Case(("compile", "m.onnx", "--target", "tpu")),
    "compile-unknown-arch": Case(("compile", "m.onnx", "--target", "cpu:riscv")),
    "compile-unknown-cpu": Case(("compile", "m.onnx", "--cpu", "z80")),
    "compile-missing-machine": Case(
        ("compile", "m.onnx", "--cpu", "x86-64-v3", "--machine", "a.json"), (("m.onnx", GOOD),)
    ),
    "compile-damaged-machine": Case(
        ("compile", "m.onnx", "--cpu", "x86-64-v3", "--machine", "a.json"),
        (("m.onnx", GOOD), ("a.json", b'{"tcc_machine": 1, "name": "mine"}')),
    ),
    "compile-missing-lock": Case(("compile", "m.onnx", "--tuned", "a.json"), (("m.onnx", GOOD),)),
    "compile-damaged-lock": Case(
        ("compile", "m.onnx", "--tuned", "a.json"),
        (("m.onnx", GOOD), ("a.json", b'{"version": 1, "targets": [\n<<<<<<< HEAD\n')),
    ),
    "compile-required-without-lock": Case(("compile", "m.onnx", "--require-tuned", "1%")),
    "compile-bad-part": Case(("compile", "m.onnx", "--tuned", "a.json", "--require-tuned", "2")),
    "compile-tuned-as-c": Case(
        ("compile", "m.onnx", "--tuned", "a.json", "--target", "c"), (("m.onnx", GOOD),)
    ),
    "tune-as-c": Case(("tune", "m.onnx", "--target", "c"), (("m.onnx", GOOD),)),
    "tune-bad-time": Case(("tune", "m.onnx", "--time", "10x")),
    "compile-preprocess-unknown-key": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml"),
        (("m.onnx", GOOD), ("p.toml", b"version = 1\n[inputs.x]\nbgrr = true\n")),
    ),
    "compile-preprocess-unknown-input": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml"),
        (("m.onnx", GOOD), ("p.toml", b"version = 1\n[inputs.image]\ncrop = true\n")),
    ),
    "compile-preprocess-zero-deviation": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml"),
        (("m.onnx", GOOD), ("p.toml", b"version = 1\n[inputs.x]\nstd = [0.2, 0, 0.2]\n")),
    ),
    "compile-preprocess-other-form": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml"),
        (("m.onnx", GOOD), ("p.toml", b"[x]\ncrop = true\n")),
    ),
    "compile-preprocess-missing": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml"), (("m.onnx", GOOD),)
    ),
    "compile-preprocess-as-c": Case(
        ("compile", "m.onnx", "--preprocess", "p.toml", "--target", "c"), (("m.onnx", GOOD),)
    ),
    "compile-tokenizer-missing": Case(
        ("compile", "m.onnx", "--tokenizer", "t.json"), (("m.onnx", GOOD),)
    ),
    "compile-tokenizer-other-form": Case(
        ("compile", "m.onnx", "--tokenizer", "t.json"), (("m.onnx", GOOD), ("t.json", b"{}"))
    ),
    "compile-tokenizer-as-c": Case(
        ("compile", "m.onnx", "--tokenizer", "t.json", "--target", "c"), (("m.onnx", GOOD),)
    ),
    "compile-batch-of-mixed-samples": Case(
        ("compile", "m.onnx", "--batch", "4"),
        (("m.onnx", model(node("Softmax", "x", "y", "mix", axis=0))),),
    ),
    "compile-batch-no-multiple": Case(("compile", "m.onnx", "--batch", "3"), (("m.onnx", GOOD),)),
    "compile-batch-of-symbolic": Case(("compile", "m.onnx", "--batch", "3"), SYMBOLIC_FILE),
    "tune-two-modes": Case(("tune", "m.onnx", "--pin", "--check")),
    "tune-check-with-records": Case(("tune", "m.onnx", "--check", "--records", "r.jsonl")),
    "tune-two-models": Case(("tune", "m.onnx", "n.onnx")),
    "tune-check-without-lock": Case(("tune", "m.onnx", "--check"), (("m.onnx", GOOD),)),
    "tune-damaged-records": Case(
        ("tune", "m.onnx", "--from", "r.jsonl"), (("m.onnx", GOOD), ("r.jsonl", b"hello\n"))
    ),
    "tune-ranks": Case(("tune", "m.onnx", "--pin", "--ranks", "2")),
    "tune-damaged-lock": Case(
        ("tune", "m.onnx", "--pin", "--lock", "a.json"),
        (("m.onnx", GOOD), ("a.json", b'{"version": 2, "targets": [\n]}\n')),
    ),
    "compile-bad-shape": Case(("compile", "m.onnx", "--input", "x=1,3")),
    "compile-bad-state": Case(("compile", "m.onnx", "--state", "past")),
    "compile-state-of-another-type": Case(("compile", "m.onnx", "--state", "x=n"), GROWING),
    "compile-state-that-grows": Case(("compile", "m.onnx", "--state", "x=y"), GROWING),
    "compile-states-of-no-input": Case(
        ("compile", "m.onnx", "--state", "past_*=present_*"), GOOD_FILE
    ),
    "compile-states-of-no-output": Case(("compile", "m.onnx", "--state", "*=present_*"), GOOD_FILE),
    "compile-states-of-unequal-patterns": Case(("compile", "m.onnx", "--state", "x*=y"), GOOD_FILE),
    "compile-state-twice": Case(
        ("compile", "m.onnx", "--state", "x=y", "--state", "x*=y*"), GOOD_FILE
    ),
    "compile-bad-state-type": Case(("compile", "m.onnx", "--state-type", "int4")),
    "compile-state-type-without-state": Case(
        ("compile", "m.onnx", "--state", "x=y", "--state-type", "bf16"), GOOD_FILE
    ),
    "compile-bad-level": Case(("compile", "m.onnx", "-O", "9")),
    "compile-no-ranks": Case(("compile", "m.onnx", "--ranks", "1,0")),
    "compile-ranks-twice": Case(("compile", "m.onnx", "--ranks", "1,1")),
    "compile-too-many-ranks": Case(("compile", "m.onnx", "--ranks", "2,65")),
    "compile-ranks-as-c": Case(
        ("compile", "m.onnx", "--ranks", "2", "--target", "c"), SYMBOLIC_FILE
    ),
    "compile-bad-name": Case(("compile", "m.onnx", "--name", "a-b")),
    "compile-unequal-buckets": Case(
        ("compile", "m.onnx", "--bucket", "n=3", "--bucket", "m=4"), SYMBOLIC_FILE
    ),
    "compile-too-small-bucket": Case(("compile", "m.onnx", "--bucket", "p=4,2"), SYMBOLIC_FILE),
    "compile-typical-of-no-size": Case(("compile", "m.onnx", "--typical", "q=4"), SYMBOLIC_FILE),
    "compile-folder": Case(("compile", ".")),
    "compile-folder-of-pickles": Case(
        ("compile", "."), (("config.json", b"{}"), ("pytorch_model.bin", b"\x80\x02."))
    ),
    "compile-onnx-as-gguf": Case(("compile", "m.gguf"), (("m.gguf", GOOD),)),
    "compile-short-gguf": Case(("compile", "m.bin"), (("m.bin", b"GGUF\3\0\0\0"),)),
    "compile-weights-alone": Case(("compile", "m.safetensors"), (("m.safetensors", b"\0" * 9),)),
    "compile-empty-file": Case(("compile", "m.onnx"), (("m.onnx", b""),)),
    "compile-text-file": Case(("compile", "m.onnx"), (("m.onnx", b"not a model at all\n"),)),
    "compile-artifact": Case(("compile", "m.so", "-o", "a.so"), ELF_FILE),
    "compile-artifact-as-archive": Case(("compile", "m.pt2"), (("m.pt2", ELF_FILE[0][1]),)),
    "compile-archive-as-onnx": Case(("compile", "m.onnx"), (("m.onnx", ZIP),)),
    "compile-onnx-as-archive": Case(("compile", "m.pt2"), (("m.pt2", GOOD),)),
    "compile-git-lfs": Case(
        ("compile", "m.onnx"), (("m.onnx", b"version https://git-lfs.github.com/spec/v1\n"),)
    ),
    "compile-to-stdout": Case(("compile", "m.onnx", "-o", "-"), (("m.onnx", GOOD),)),
    "run-to-stdout": Case(("run", "m.onnx", "--output", "-"), (("m.onnx", GOOD),)),
    "doctor-to-stdout": Case(("doctor", "--calibrate", "-o", "-")),
    "run-model-as-artifact": Case(("run", "m.so"), (("m.so", GOOD),)),
    "run-elf-of-another-kind": Case(("run", "program"), (("program", ELF_FILE[0][1]),)),
    "run-empty-artifact": Case(("run", "m.so"), (("m.so", b""),)),
    "run-folder": Case(("run", ".")),
    "inspect-archive": Case(("inspect", "m.so"), (("m.so", ZIP),)),
    "inspect-derivations-of-artifact": Case(
        ("inspect", "program", "--derivations"), (("program", ELF_FILE[0][1]),)
    ),
    "verify-artifact-as-model": Case(("verify", "m.so"), ELF_FILE),
    "verify-model-as-artifact": Case(
        ("verify", "m.onnx", "n.onnx"), (("m.onnx", GOOD), ("n.onnx", GOOD))
    ),
    "bench-model-as-artifact": Case(
        ("bench", "m.onnx", "--artifact", "n.onnx"), (("m.onnx", GOOD), ("n.onnx", GOOD))
    ),
    "compile-truncated": Case(("compile", "m.onnx"), (("m.onnx", GOOD[:-9]),)),
    "compile-unknown-ops": Case(("compile", "m.onnx"), (("m.onnx", UNKNOWN),)),
    "compile-old-opset": Case(("compile", "m.onnx"), (("m.onnx", model(opset=0)),)),
    "compile-new-opset": Case(("compile", "m.onnx"), (("m.onnx", model(opset=999)),)),
    "compile-undefined-value": Case(
        ("compile", "m.onnx"), (("m.onnx", model(node("Relu", "nothing", "y", "relu"))),)
    ),
    "compile-missing-output": Case(
        ("compile", "m.onnx"), (("m.onnx", model(node("Relu", "x", "other", "relu"))),)
    ),
    "compile-bad-operands": Case(
        ("compile", "m.onnx"), (("m.onnx", model(node("Conv", "x x", "y", "conv"))),)
    ),
    "compile-escaping-data": Case(
        ("compile", "m.onnx"), (("m.onnx", EXTERNAL.SerializeToString()),)
    ),
    "compile-unknown-input": Case(("compile", "m.onnx", "--input", "z=2x3"), (("m.onnx", GOOD),)),
    "compile-other-input-rank": Case(
        ("compile", "m.onnx", "--input", "x=2x3x4"), (("m.onnx", GOOD),)
    ),
    "compile-other-input-size": Case(
        ("compile", "m.onnx", "--input", "x=2x4"), (("m.onnx", GOOD),)
    ),
    "compile-output-is-folder": Case(("compile", "m.onnx", "-o", "."), (("m.onnx", GOOD),)),
    "compile-output-is-model": Case(("compile", "m.onnx", "-o", "m.onnx"), (("m.onnx", GOOD),)),
    "compile-output-is-header": Case(("compile", "m.onnx", "-o", "m.h"), (("m.onnx", GOOD),)),
    "compile-package-and-output": Case(
        ("compile", "m.onnx", "-o", "m.so", "--package", "m"), (("m.onnx", GOOD),)
    ),
    "compile-package-of-c": Case(
        ("compile", "m.onnx", "--target", "c", "--package", "m"), (("m.onnx", GOOD),)
    ),
    "compile-package-of-object": Case(
        ("compile", "m.onnx", "--emit", "object", "--package", "m"), (("m.onnx", GOOD),)
    ),
    "compile-emit-of-c": Case(
        ("compile", "m.onnx", "--target", "c", "--emit", "static"), (("m.onnx", GOOD),)
    ),
    "compile-emit-unknown": Case(("compile", "m.onnx", "--emit", "dll"), (("m.onnx", GOOD),)),
    "run-static-library": Case(("run", "m.a"), (("m.a", b"!<arch>\nmodel.o/"),)),
    "compile-package-is-file": Case(
        ("compile", "m.onnx", "--package", "m.onnx"), (("m.onnx", GOOD),)
    ),
    "compile-package-is-too-long": Case(
        ("compile", "m.onnx", "--package", "m" * 300), (("m.onnx", GOOD),)
    ),
    "compile-output-is-too-long": Case(("compile", "m.onnx", "-o", "o" * 300), (("m.onnx", GOOD),)),
    "compile-unknown-step": Case(("compile", "m.onnx", "--stop-after", "fusing")),
    "compile-step-of-another-target": Case(
        ("compile", "m.onnx", "--stop-after", "sign-operands"), (("m.onnx", GOOD),)
    ),
    "compile-reserved-name": Case(("compile", "m.onnx", "--name", "tcc"), (("m.onnx", GOOD),)),
    "compile-different-collectives": Case(("compile", "m.onnx"), parsed(DIFFERENT)),
    "compile-groups-of-ranks": Case(("compile", "m.onnx"), parsed(GROUPS, "pairs", "fours")),
    "compile-collectives-as-c": Case(
        ("compile", "m.onnx", "--target", "c"),
        parsed(COLLECTIVE.format("y = com.microsoft.AllReduce(x)"), "total"),
    ),
    "run-text-file": Case(("run", "m.so"), (("m.so", b"not an artifact\n" * 9),)),
    "run-truncated-elf": Case(("run", "m.so"), (("m.so", b"\x7fELF\x02\x01" + bytes(99)),)),
    "inspect-text-file": Case(("inspect", "m.so"), (("m.so", b"not an artifact\n" * 9),)),
    "compile-random-integers": Case(
        ("compile", "m.onnx"), parsed(RANDOM.format("<dtype = 7>"), "noise")
    ),
    "run-pins-nothing": Case(("run", "m.so", "--pin")),
    "run-ranks-to-one-folder": Case(("run", "m.so", "--nproc", "2", "--output", "out")),
    "run-missing-file": Case(("run", "absent.so")),
    "inspect-missing-file": Case(("inspect", "absent.so")),
    "inspect-graph-format": Case(("inspect", "m.onnx", "--graph", "g.png"), (("m.onnx", GOOD),)),
    "inspect-graph-of-text": Case(
        ("inspect", "m.so", "--graph", "g.svg"), (("m.so", b"not an artifact\n" * 9),)
    ),
    "profile-missing-file": Case(("profile", "absent.so", "-o", "page.html")),
    "profile-text-file": Case(("profile", "m.so"), (("m.so", b"not an artifact\n" * 9),)),
    "profile-to-standard-output": Case(("profile", "m.so", "--trace", "-")),
    "quantize-archive": Case(
        ("quantize", "m.pt2", "-o", "q.onnx", "--data", "s"), (("m.pt2", ZIP),)
    ),
    "quantize-artifact": Case(("quantize", "m.so", "-o", "q.onnx", "--data", "s"), ELF_FILE),
    "quantize-output-is-model": Case(
        ("quantize", "m.onnx", "-o", "m.onnx", "--data", "s"), (("m.onnx", GOOD),)
    ),
    "quantize-output-without-folder": Case(
        ("quantize", "m.onnx", "-o", "absent/q.onnx", "--data", "s"), (("m.onnx", GOOD),)
    ),
    "quantize-missing-folder": Case((*QUANTIZE, "absent"), (("m.onnx", GOOD),)),
    "quantize-two-folders": Case((*QUANTIZE, "s", "--data", "t"), (("m.onnx", GOOD),)),
    "quantize-one-sample": Case(
        (*QUANTIZE, "x=@a.npy"), (("m.onnx", GOOD), ("a.npy", sample(2, 3)))
    ),
    "quantize-infinite-sample": Case(
        (*QUANTIZE, "x=@a.npy"), (("m.onnx", GOOD), ("a.npy", sample(2, 3, value=np.inf)))
    ),
    "quantize-other-shape": Case(
        (*QUANTIZE, "x=@a.npy"), (("m.onnx", GOOD), ("a.npy", sample(1, 3)))
    ),
    "quantize-random-sample": Case((*QUANTIZE, "x=2x3"), (("m.onnx", GOOD),)),
    "bench-unknown-peer": Case(("bench", "m.onnx", "--peers", "abacus")),
    "bench-gate-below-one": Case(("bench", "m.so", "--compare", "n.so", "--gate", "0.9")),
    "bench-gate-of-nothing": Case(("bench", "m.so", "--gate", "1.05")),
    "bench-compare-models": Case(
        ("bench", "m.onnx", "--compare", "n.onnx"), (("m.onnx", GOOD), ("n.onnx", GOOD))
    ),
    "bench-compare-with-peers": Case(
        ("bench", "m.onnx", "--compare", "n.so", "--artifact", "a.so"), (("m.onnx", GOOD),)
    ),
    "bench-peer-of-artifact": Case(("bench", "m.so", "--peers", "ort")),
    "plan-check-and-write": Case(("plan", "m.onnx", "--check", "p.json", "-o", "q.json")),
    "plan-check-of-no-plan": Case(("plan", "m.onnx", "--check", "p.json"), (("p.json", b"{}"),)),
    "verify-pins-nothing": Case(("verify", "m.onnx", "--pin"), (("m.onnx", GOOD),)),
    "verify-layers-of-ranks": Case(
        ("verify", "m.onnx", "--layers", "--nproc", "2"), (("m.onnx", GOOD),)
    ),
    "ops-unknown": Case(("ops", "NoSuchOp")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_message_is(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    for file, data in case.files:
        Path(file).write_bytes(data)
    code = cli.execute(case.arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f for f, _ in case.files), (
        "something was left behind"
    )
    newest = f"to {onnx.defs.onnx_opset_version()} are"  # depends on the installed onnx
    message = f"exit {code}\n{err}".replace(newest, "to NEWEST are")
    assert code == 2, "the user's fault"
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("TCC_UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(message, encoding="utf-8")
    assert golden.is_file(), "no such golden: TCC_UPDATE_GOLDENS=1 scripts/test tests/errors"
    assert message == golden.read_text(encoding="utf-8")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*")} == set(CASES)
