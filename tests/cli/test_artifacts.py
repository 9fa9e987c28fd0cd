"""run, inspect, bench and verify work on a hand-written artifact."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc import cli
from tcc.artifact import find_weights, load, read_manifest
from tcc.cli.kernels import listing
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.runtime.result_text import array_lines, array_record


def reference(folder: Path, offset: float, name: str = "x") -> Path:
    """Writes an ONNX model that computes what the artifact computes for 3 elements, plus
    `offset`."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in (name, "y")]
    weights = np.arange(1, 4, dtype=np.float32) + np.float32(offset)
    nodes = [
        helper.make_node("Relu", [name], ["r"]),
        helper.make_node("Add", ["r", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")]
    )
    path = folder / "reference.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_run_prints_and_writes_the_outputs(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.array([-1, 2, -3], np.float32))
    argument = f"x=@{tmp_path}/x.npy"
    assert cli.execute(["run", str(artifact), "-i", argument, "--output", str(tmp_path / "o")]) == 0
    assert capsys.readouterr().out == "y: float32 3, least 1, largest 4, mean 2.66667\n"
    output = np.load(tmp_path / "o" / "y.npy")
    np.testing.assert_array_equal(output, np.array([1, 4, 3], np.float32), strict=True)


def test_run_fills_missing_inputs(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["run", str(artifact), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)["y"]
    assert (output["dtype"], output["shape"], len(output["values"])) == ("float32", [1], 1)
    assert cli.execute(["run", str(artifact), "-i", "x=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["y"]["shape"] == [5]


def test_json_holds_the_values_of_a_run(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.array([-1, 0.1, 2, np.inf], np.float32)
    np.save(tmp_path / "x.npy", x)
    assert cli.execute(["run", str(artifact), "-i", f"x=@{tmp_path}/x.npy", "--json"]) == 0
    text = capsys.readouterr().out
    values = json.loads(text, parse_constant=pytest.fail)["y"]["values"]
    exact = np.maximum(x, 0) + np.arange(1, 5, dtype=np.float32)
    np.testing.assert_array_equal(np.array(values, float), exact.astype(float))
    assert values[3] == "inf"
    assert array_record(np.array([np.nan, -np.inf]))["values"] == ["nan", "-inf"]


def test_lists_absent_results_and_texts_are_values_too() -> None:
    strings = np.array(["a", "b"], object)
    assert array_record([strings, None]) == [
        {"dtype": "string", "shape": (2,), "values": ["a", "b"]},
        None,
    ]
    integers = np.array([2**60 + 1])
    assert list(array_lines({"n": integers})) == [
        f"n: int64 1, least {2**60 + 1}, largest {2**60 + 1}, mean 1.15292e+18"
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x=65", "at most 64"),
        ("x=2x3", "expected shape [n], got [2,3]"),
        ("x=3xi32=1", "i32"),
        ("z=3", "no input 'z'"),
    ],
)
def test_run_refuses_inputs_of_wrong_shape_or_type(
    artifact: Path, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["run", str(artifact), "-i", given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_inspect_shows_the_manifest(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["inspect", str(artifact)]) == 0
    assert re.search(r"^input +f32 +\[n\] +x$", capsys.readouterr().out, re.MULTILINE)
    assert cli.execute(["inspect", str(artifact), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert [port["name"] for port in manifest["inputs"]] == ["x"]


def test_inspect_refuses_a_manifest_without_kernels(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["inspect", str(artifact), "--kernels"]) == 2
    assert "does not describe its kernels" in capsys.readouterr().err
    assert cli.execute(["inspect", str(artifact), "--form", "llvm", "--kernel", "0"]) == 2
    assert "--keep-ir" in capsys.readouterr().err


def test_bench_times_the_artifact(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--rounds", "2", "--seconds", "0.01", "--threads", "1"]
    assert cli.execute(["bench", str(artifact), *small, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["threads"] == 1
    assert 0 < report["seconds"]["tcc"]["least"] <= report["seconds"]["tcc"]["median"]


@pytest.mark.parametrize(("offset", "code"), [(1e-6, 0), (0.01, 1)])
def test_verify_compares_with_onnx_runtime(
    artifact: Path,
    tmp_path: Path,
    offset: float,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    model = reference(tmp_path, offset)
    assert cli.execute(["verify", str(model), str(artifact), "-i", "x=3"]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"{1 - code} of 1 outputs agree with ONNX Runtime"


def test_verify_refuses_the_artifact_of_another_model(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = reference(tmp_path, 0.0, "image")
    assert cli.execute(["verify", str(model), str(artifact), "-i", "x=3"]) == 2
    assert "from another model" in capsys.readouterr().err


def test_verify_refuses_damaged_weights(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = find_weights(artifact, read_manifest(artifact))
    assert weights is not None
    data = bytearray(artifact.read_bytes())
    data[weights.offset] ^= 1
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(data)
    assert cli.execute(["verify", str(reference(tmp_path, 0.0)), str(damaged), "-i", "x=3"]) == 2
    assert "weights are damaged" in capsys.readouterr().err


def test_verify_without_onnx_runtime_uses_the_evaluator(
    artifact: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tcc.cli.reference.find_spec", lambda name: None)
    model = reference(tmp_path, 0.0)
    assert cli.execute(["verify", str(model), str(artifact), "-i", "x=3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["oracle"] == "the reference evaluator"
    assert report["ok"] is True


@pytest.mark.parametrize("threads", [-2, 1 << 32, "two", 1.5])
def test_an_invalid_number_of_threads_is_refused(threads: Any, artifact: Path) -> None:
    with pytest.raises(UserError, match="no number of threads"):
        load(artifact, threads)


def test_a_variant_that_is_not_there(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "read_listings", lambda path: {"tcc_kernel_0": ""})
    for form in ("llvm", "asm"):
        assert cli.execute(["inspect", str(artifact), "--form", form, "--kernel", "5/0"]) == 2
        assert "no variant 5" in capsys.readouterr().err


SHOWN = {
    "graph": "= relu(%x)",
    "expr": "max(p0[i0,i1], 0.0:f32)",
    "tile": "kernel()",
    "schedule": "// limit: ",
    "program": "launch k0",
    "llvm": "define ",
    "asm": ".text",
}


def relu(folder: Path) -> Path:
    path = folder / "relu.onnx"
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) {y = Relu(x)}'
    )
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize("form", SHOWN)
def test_a_model_is_shown_in_each_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(relu(tmp_path))
    assert cli.execute(["inspect", model, "--form", form]) == 0
    text = capsys.readouterr().out
    assert SHOWN[form] in text
    code = cli.execute(["inspect", model, "--form", form, "--kernel", "0"])
    output = capsys.readouterr()
    if form in ("graph", "program"):
        assert (code, "one text for all kernels" in output.err) == (2, True)
        return
    assert (code, output.out.strip()) == (0, text.strip())
    assert cli.execute(["inspect", model, "--form", form, "--kernel", "1"]) == 2
    assert "no " in capsys.readouterr().err


def test_derivations_are_shown_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "linear.onnx")
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[900,8] q, float[8,900] k, float[900,8] v)"
        " => (float[900,8] y) {s = MatMul(q, k) y = MatMul(s, v)}"
    )
    onnx.save(onnx.parser.parse_model(text), path)
    assert cli.execute(["inspect", path, "--derivations"]) == 0
    derivations = capsys.readouterr().out
    assert "(x0 (x1 x2))" in derivations
    assert "taken 1 times" in derivations
    assert "saves less than" in derivations
    assert cli.execute(["inspect", path, "--derivations", "--json"]) == 0
    (site,) = json.loads(capsys.readouterr().out)
    assert site["nodes"] == ["matmul", "matmul"]
    assert [c["chosen"] for c in site["candidates"]] == [1, 0]
    assert site["candidates"][0]["seconds"] < site["seconds"]
    assert cli.execute(["inspect", str(relu(tmp_path)), "--derivations"]) == 0
    assert "0 sites" in capsys.readouterr().out
    picture = tmp_path / "site.svg"
    assert (
        cli.execute(["inspect", str(relu(tmp_path)), "--derivations", "--svg", str(picture)]) == 2
    )
    assert "no derivation to draw" in capsys.readouterr().err
    assert not picture.exists()


def test_a_bilinear_form_is_drawn_with_its_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The transformed image, the contraction and the result stand in the right half of the picture;
    the transformed filters are drawn as an operand that is known before the run."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y)
        { y = Conv <pads = [1, 1, 1, 1]> (x, w) }""")
    filters = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    model.graph.initializer.append(onnx.numpy_helper.from_array(filters, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    picture = tmp_path / "m.svg"
    command = [
        "inspect",
        str(tmp_path / "m.onnx"),
        "--derivations",
        "--svg",
        str(picture),
        "--json",
    ]
    assert cli.execute(command) == 0
    (site,) = json.loads(capsys.readouterr().out)
    (form,) = [c for c in site["candidates"] if c["chosen"]]
    tile, kernel = (int(part) for part in re.match(r"F\((\d) x \d, (\d)", form["chain"]).groups())
    points = (tile + kernel - 1) ** 2
    # The first and the remaining stages (direct weights, and stages around the form's three) belong
    # to the guard.
    image, filters_, _, *stages = form["stages"]
    (contraction,) = (stage for stage in stages if "p1" in stage["reads"])
    (first,) = (stage for stage in stages if stage["name"] == contraction["reads"][0])
    (formed,) = (stage for stage in stages if contraction["name"] in stage["reads"])
    result = stages[-1]
    assert (image["type"], result["type"]) == ("f32[1,64,56,56]", "f32[1,64,56,56]")
    assert filters_["type"].startswith(f"f32[{points},")
    assert filters_["known"]
    assert (first["reads"], contraction["reads"][1:]) == (["p0"], ["p1"])
    assert formed["name"] in result["reads"]
    products = points * (-(-56 // tile)) ** 2 * 64 * 64  # per point, tile and channel pair
    assert f"{products / 1e6:,.1f} M products" in contraction["does"]
    root = ElementTree.parse(picture).getroot()
    boxes = [float(r.get("x", "0")) for r in root.findall("{*}rect")][1:]
    assert [sum(x > float(root.get("width", "0")) / 2 for x in boxes), len(boxes)] == [17, 20]


def test_a_chain_is_replayed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, chain, picture = (str(tmp_path / n) for n in ("linear.onnx", "chain.txt", "site.svg"))
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[6,8] q, float[8,10] k) => (float[6,10] y) {y = MatMul(q, k)}"
    )
    onnx.save(onnx.parser.parse_model(text), path)
    command = ["inspect", path, "--derivations", "--replay", chain]
    steps = "split stage=0 loop=2 inner=4 shift=0; nest stage=0 loops=2"
    Path(chain).write_text(f"site -> y (MatMul)\n{steps}\n")
    assert cli.execute([*command, "--svg", picture, "--json"]) == 0
    (site,) = json.loads(capsys.readouterr().out)
    replayed = site["candidates"][0]
    assert (replayed["chain"], replayed["why"]) == (steps, "replayed")
    assert replayed["seconds"] > 0
    products = [stage for stage in replayed["stages"] if "products" in stage["does"]]
    assert [stage["type"] for stage in products] == ["f32[6,10,2]"]
    drawn = ElementTree.parse(picture).getroot()
    texts = [t.text or "" for t in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for row in (*site["stages"], *replayed["stages"]):
        assert f"{row['name']}: {row['type']}" in texts
    lines = [p for p in drawn.iter("{http://www.w3.org/2000/svg}path") if p.get("fill") == "none"]
    assert len(lines) == sum(len(r["reads"]) for r in (*site["stages"], *replayed["stages"]))
    for text, said in (
        ("site other\nnest stage=0 loops=2", "line 1: site other"),
        ("", "names no site"),
        ("site -> y (MatMul)\nreverse stage=0 loop=2\nsplit stage=9", "step 2: split stage=9"),
        ("site -> y (MatMul)\nnest stage=0 loops=2", "step 1: nest"),
    ):
        Path(chain).write_text(text)
        assert cli.execute(command) == 2
        assert said in capsys.readouterr().err
    assert cli.execute([*command[:2], *command[3:]]) == 2
    assert "add --derivations" in capsys.readouterr().err


def test_a_form_that_there_is_not(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        ([str(artifact), "--form", "tile"], "give the ONNX file"),
        ([str(relu(tmp_path)), "--form", "triton"], "it is for the CPU"),
        ([str(artifact), "--kernel", "0"], "add --form"),
        ([str(artifact), "--derivations"], "give the ONNX file"),
    ):
        assert cli.execute(["inspect", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_a_compile_stops_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = str(relu(tmp_path)), tmp_path / "made.so"
    arguments = ["compile", model, "-o", str(artifact), "--verify", "--stop-after", "partition"]
    assert cli.execute(arguments) == 0
    assert "0: relu %y" in capsys.readouterr().out
    assert not artifact.exists()
    assert cli.execute([*arguments[:4], "--verify"]) == 0
    assert artifact.exists()


def test_a_dump_that_cannot_be_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "dump")
    (tmp_path / "dump" / "00-import.txt").mkdir()
    with pytest.raises(UserError, match="dump"):
        trace.dump("import", lambda: "text")


def _narrow_model(path: Path, element: int, size: int) -> Path:
    """Writes the model y = ((x @ w) @ w) @ w."""
    matrix = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / size**0.5
    weights = helper.make_tensor("w", element, matrix.shape, matrix.ravel())
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in ("xa", "ab", "by")]
    ports = [helper.make_tensor_value_info(name, element, [8, size]) for name in "xy"]
    graph = helper.make_graph(nodes, "narrow", ports[:1], ports[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_a_model_of_f16_may_round_as_f16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    model = _narrow_model(tmp_path / "m.onnx", TensorProto.FLOAT16, 64)
    assert cli.execute(["verify", str(model), "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert 1e-4 < output["error"] < 2e-3
    assert cli.execute(["verify", str(model), "--tolerance", "1e-4"]) == 1


def test_a_model_of_bf16_runs_on_random_arrays_and_on_its_own_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _narrow_model(tmp_path / "m.onnx", TensorProto.BFLOAT16, 8)
    command = ["run", str(model), "--json"]
    assert cli.execute([*command, "--output", str(tmp_path)]) == 0
    assert cli.execute([*command, "--input", f"x=@{tmp_path / 'y.npy'}"]) == 0
    assert capsys.readouterr().out.count('"shape": [8, 8]') == 2


def test_archives_of_torch_are_not_checked_by_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["verify", "m.pt2", "--layers"]) == 2
    assert "only ONNX files are checked layer by layer" in capsys.readouterr().err
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"PK\x03\x04 and no more")
    assert cli.execute(["verify", str(broken)]) == 2
    said = capsys.readouterr().err
    assert f"the archive cannot be read\n  at: {broken}\n  because: " in said
    assert "to do: " in said


FIXED = """<ir_version: 9, opset_import: ["": 17]>
    fixed (float[2, 3] x, float[3] past) => (float[2, 3] y, float[3] next)
    { y = Relu(x)  sum = ReduceSum <keepdims = 0> (x)  next = Add(past, sum) }"""


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--batch", "4"], 2)])
def test_verify_refuses_an_artifact_of_another_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    pytest.importorskip("onnxruntime")
    model, artifact = tmp_path / "fixed.onnx", tmp_path / "fixed.so"
    text = FIXED if not options else FIXED.replace(", float[3] past", "").split("sum =")[0] + "}"
    text = text if not options else text.replace(", float[3] next", "")
    onnx.save(onnx.parser.parse_model(text), model)
    state = [] if options else ["--state", "past=next"]
    words = ["compile", str(model), "-o", str(artifact), *options, *state]
    assert cli.execute(words) == 0
    assert cli.execute(["verify", str(model), str(artifact)]) == code
    err = capsys.readouterr().err
    assert ("without --batch" in err) == bool(options)
    assert ("x of 4 samples" in err and "x of 2 samples" in err) == bool(options)
