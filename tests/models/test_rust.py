"""Cargo builds Rust programs from packages, which are then installed, moved, and run.

The results agree with NumPy's; a table of compiler errors lists programs that must not compile.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tcc.backends.artifact.crate import port_constants
from tcc.cli import execute

from tests.models.test_cpp import check, compile_package, write_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "models" / "examples" / "rust"
HEADERS = ROOT / "runtime" / "include"
pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")


TOKENIZER = '{"version": "1.0", "model": {"type": "BPE", "vocab": {"é": 0}, "merges": []}}'


def cargo(*words: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs cargo without network; warnings of rustc are errors."""
    command = ("cargo", *words, "--offline", "--quiet")
    environment = {**os.environ, "RUSTFLAGS": "-D warnings", **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def succeed(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    return result.stdout


@pytest.mark.parametrize("emit", ["shared", "static"])
def test_cargo_builds_a_program_that_may_move(tmp_path: Path, emit: str) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "the source")
    write_model(tmp_path / "classifier.onnx")
    first = tmp_path / "first"
    compile_package(tmp_path / "classifier.onnx", first, emit)
    package = first.rename(source / "package")
    app = tmp_path / "app"
    succeed(cargo("install", "--path", ".", "--root", app, "--debug", folder=source))
    (app / "lib").mkdir()
    if emit == "shared":
        shutil.copy(package / "lib" / "classifier.so", app / "lib")
    shutil.rmtree(source)
    check(app, tmp_path)


def write_ports(path: Path) -> None:
    """Writes a model whose outputs are its inputs, with colliding names and many element types."""
    types = {
        "x": TensorProto.FLOAT,
        "X": TensorProto.DOUBLE,
        "1": TensorProto.INT64,
        'β "\n': TensorProto.BOOL,
        "_": TensorProto.FLOAT16,
        "type": TensorProto.BFLOAT16,
        "words": TensorProto.STRING,
    }
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", [name], [f"{name} out"]) for name in types]
    inputs = [value(name, kind, [2]) for name, kind in types.items()]
    outputs = [value(f"{name} out", kind, [2]) for name, kind in types.items()]
    graph = helper.make_graph(nodes, "ports", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def write_sum(path: Path) -> None:
    """Writes a model of next = past + x for three rows, and twice = 2 * next."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", ["past", "x"], ["next"]),
        helper.make_node("Add", ["next", "next"], ["twice"]),
    ]
    inputs = [value(name, TensorProto.FLOAT, [3]) for name in ("past", "x")]
    outputs = [value(name, TensorProto.FLOAT, [3]) for name in ("next", "twice")]
    graph = helper.make_graph(nodes, "sum", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a crate that depends on the models `ports` and `sum`."""
    folder = tmp_path_factory.mktemp("programs")
    write_ports(folder / "ports.onnx")
    write_sum(folder / "sum.onnx")
    compile_package(folder / "ports.onnx", folder / "package")
    (folder / "package").mkdir(exist_ok=True)
    words = ["compile", str(folder / "sum.onnx"), "--package", str(folder / "package")]
    (folder / "tokenizer.json").write_text(TOKENIZER)
    flags = ["--state", "past=next", "--tokenizer", str(folder / "tokenizer.json")]
    assert execute([*words, *flags]) == 0
    dependencies = (f'tcc_{name} = {{path = "package/rust/{name}"}}' for name in ("ports", "sum"))
    manifest = ("[package]", 'name = "programs"', 'version = "1.0.0"', 'edition = "2018"')
    lines = (*manifest, "[dependencies]", *dependencies)
    (folder / "Cargo.toml").write_text("\n".join(lines))
    (folder / "src").mkdir()
    return folder


def run(programs: Path, text: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    (programs / "src" / "main.rs").write_text(text)
    return cargo(command, folder=programs)


def test_ports_have_the_types_of_their_elements(programs: Path) -> None:
    text = """
use tcc_ports::{input, load, output, BF16, F16};

fn main() -> Result<(), tcc_ports::Error> {
    let model = load()?;
    let words = ["é", ""];
    let mut arguments = vec![
        input::X.of(&[0.5, 2.0])?,
        input::X_1.of(&[0.1, -3.0])?,
        input::INPUT_1.of(&[i64::min_value(), 7])?,
        input::BETA___.of(&[true, false])?,
        input::INPUT__.of(&[F16(0x3c00), F16(0xfbff)])?,
        input::TYPE.of(&[BF16(0x3f80), BF16(0x4000)])?,
        input::WORDS.of_strings(&words, &[2])?,
    ];
    arguments.reverse();
    let results = model.run(&arguments)?;
    println!("{:?}", results.get(output::X_OUT));
    println!("{:?}", results.get(output::X_OUT_1));
    println!("{:?}", results.get(output::OUTPUT_1_OUT));
    println!("{:?}", results.get(output::BETA____OUT));
    println!("{:?}", results.get(output::OUTPUT___OUT));
    println!("{:?}", results.get(output::TYPE_OUT));
    println!("{:?} {:?}", results.strings(output::WORDS_OUT), results.shape(output::WORDS_OUT));
    println!("{:?} {}", model.inputs()[3].name, model.manifest().contains("variants"));
    Ok(())
}
"""
    assert succeed(run(programs, text)).splitlines() == [
        "[0.5, 2.0]",
        "[0.1, -3.0]",
        f"[{np.iinfo(np.int64).min}, 7]",
        "[true, false]",
        f"[F16({0x3C00}), F16({0xFBFF})]",
        f"[BF16({0x3F80}), BF16({0x4000})]",
        "[[195, 169], []] [2]",
        '"β \\"\\n" true',
    ]


def test_a_state_is_updated_in_place_on_any_thread(programs: Path) -> None:
    text = """
use std::thread;
use tcc_sum::{input, load, output, Canceller, Error, Instance, Model, Results, Status};

fn shared<T: Send + Sync>() {}

fn main() -> Result<(), Error> {
    shared::<(Model, Instance, Canceller, Results, Error)>();
    let model = load()?;
    let mut instance = Instance::new(&model)?;
    instance.set_threads(1)?;
    instance.seed(7)?;
    instance.unseed()?;
    let canceller = instance.canceller();
    drop(model);
    let work = thread::spawn(move || -> Result<Vec<f32>, Error> {
        let mut past = vec![1.0, 2.0, 3.0];
        for step in 0..3 {
            let x = [step as f32; 3];
            let results = instance.run(&[input::PAST.of(&mut past)?, input::X.of(&x)?])?;
            println!("{:?}", results.get(output::TWICE));
        }
        Ok(past)
    });
    println!("{:?}", work.join().unwrap()?);
    let error = canceller.cancel().unwrap_err();
    println!("{:?}", error.status() == Status::InvalidArgument);
    Ok(())
}
"""
    past, lines = np.array([1.0, 2, 3]), []
    for step in range(3):
        past += step
        lines.append(str((2 * past).tolist()))
    assert succeed(run(programs, text)).splitlines() == [*lines, str(past.tolist()), "true"]


def test_an_asset_is_found_by_its_name(programs: Path) -> None:
    text = """
use tcc_sum::{load, Error, Status};

fn main() -> Result<(), Error> {
    let model = load()?;
    print!("{}", std::str::from_utf8(model.asset("tokenizer.json")?).unwrap());
    for name in &["vocabulary", "a\\0b"] {
        assert!(model.asset(name).unwrap_err().status() == Status::InvalidArgument);
    }
    Ok(())
}
"""
    assert succeed(run(programs, text)) == TOKENIZER


def test_failures_are_results_with_a_status_and_a_message(programs: Path) -> None:
    text = """
use tcc_sum::{input, load, Error};

fn show(error: Error) {
    println!("{:?}: {}", error.status(), error);
}

fn main() {
    let model = load().unwrap();
    let (mut past, x) = ([0.0; 3], [0.0; 3]);
    show(input::X.of(&x[..2]).err().unwrap());
    show(input::X.with_shape(&x, &[-3]).err().unwrap());
    show(input::X.with_shape(&x, &[i64::max_value(), i64::max_value()]).err().unwrap());
    let past_argument = input::PAST.of(&mut past).unwrap();
    show(model.run(&[past_argument]).err().unwrap());
    let past_argument = input::PAST.of(&mut past).unwrap();
    let twice = [input::X.of(&x).unwrap(), input::X.of(&x).unwrap(), past_argument];
    show(model.run(&twice).err().unwrap());
    let shape = [input::X.with_shape(&x, &[1, 3]).unwrap(), input::PAST.of(&mut past).unwrap()];
    show(model.run(&shape).err().unwrap());
}
"""
    lines = succeed(run(programs, text)).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("InvalidArgument: ") for line in lines)
    assert "input x has the shape [3], and its values have 8 bytes" in lines[0]
    assert lines[3].endswith("no input x was given")
    assert lines[4].endswith("input x was given twice")
    assert "'x'" in lines[5]


WRONG = {
    "element type": ("input::X.of(&[1i32, 2, 3])", "E0308"),
    "state that others read": ("input::PAST.of(&past)", "E0308"),
    "state in use": (
        "{ let a = input::PAST.of(&mut past); past[0] = 1.0; let _ = load()?.run(&[a?]); 0 }",
        "E0506",
    ),
    "argument on two threads": (
        "{ let a = input::PAST.of(&mut past)?; std::thread::spawn(move || drop(a)); 0 }",
        "E0277",
    ),
    "output of another model": ("load()?.run(&[])?.get(tcc_ports::output::X_OUT)", "E0308"),
    "output that is the state": ("tcc_sum::output::NEXT", "E0425"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_program_does_not_compile(programs: Path, case: str) -> None:
    code, number = WRONG[case]
    text = f"""
#![allow(unused)]
use tcc_sum::{{input, load, Error}};

fn main() -> Result<(), Error> {{
    let mut past = [0.0f32; 3];
    let value = {code};
    Ok(())
}}
"""
    result = run(programs, text, "check")
    assert result.returncode != 0
    assert f"error[{number}]" in result.stderr, result.stderr


def test_a_package_without_its_library_says_so(programs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(programs / "package", tmp_path / "package")
    (copy / "lib" / "sum.so").unlink()
    result = cargo("check", folder=copy / "rust" / "sum")
    assert result.returncode != 0
    assert "copy the whole package" in result.stderr


def test_the_table_has_the_functions_of_the_header() -> None:
    table = re.search(r"typedef struct tcc_api \{(.*?)\n\} tcc_api;", _plain("tcc.h"), re.DOTALL)
    api = re.search(r"struct Api \{(.*?)\n\}", _plain("tcc_abi.rs"), re.DOTALL)
    assert table
    assert api
    declarations = [text for text in table[1].split(";") if text.strip()]
    names = [re.search(r"\(\*(\w+)\)|(\w+)$", text) for text in declarations]
    names = [match[1] or match[2] for match in names if match]
    assert names == re.findall(r"^    pub (\w+):", api[1], re.M)


def _plain(name: str) -> str:
    """Returns the text of a file beside the header, without C comments."""
    return re.sub(r"/\*.*?\*/", "", (HEADERS / name).read_text(), flags=re.DOTALL)


def test_every_element_type_of_the_header_has_a_rust_type() -> None:
    types = re.findall(
        r"#define TCC_(\w+) TCC_DTYPE\((\d+), (\d+)\)", (HEADERS / "tcc.h").read_text()
    )
    text = (HEADERS / "tcc_elements.rs").read_text()
    rust = re.findall(r"\b(\w+)(?: u\d+)? (\d+) (\d+),", text)
    assert {(name.lower(), *numbers) for name, *numbers in types} == {
        (name.lower(), *numbers) for name, *numbers in rust
    }


def port(name: str, dtype: str = "f32", state: int = -1) -> Mapping[str, object]:
    return {"name": name, "dtype": dtype, "shape": [None, 2], "text": "[n,2]", "state": state}


def test_every_name_becomes_a_constant_of_its_own() -> None:
    names = ["x", "X", "x_1", "x_1_2", "", "1", "_", "\u202e", 'a\\"}\n*/']
    text = port_constants({"inputs": [port(name) for name in names], "outputs": []})
    constants = re.findall(r"pub const (\w+): Input<F32>", text)
    assert len({*constants}) == len(names)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", constant) for constant in constants)
    assert text.isascii()


def test_a_list_has_no_constant() -> None:
    text = port_constants({"inputs": [port("x", "sequence(f32)")], "outputs": [port("y")]})
    assert re.findall(r"pub const (\w+)", text) == ["Y"]
