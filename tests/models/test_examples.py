"""The examples give the answers that a person would give."""

from __future__ import annotations

import importlib.util
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from tcc import cli
from tcc.runtime import Module

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "models" / "examples"
SAMPLES = ROOT.parent / "shared" / "models"
NEEDS_IO = pytest.mark.skipif(
    importlib.util.find_spec("soundfile") is None or importlib.util.find_spec("PIL") is None,
    reason="the extra io is not installed",
)


def sample(name: str) -> Path:
    path = SAMPLES / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the repository")
    return path


@pytest.fixture
def lines_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Returns a function that runs an example on an artifact and returns the printed lines.

    The example runs in this process and uses the artifact instead of compiling. The function checks
    that the example would compile its first word, the model, with the given options.
    """

    def lines_of(
        artifact: Path, options: dict[str, object], example: str, model: Path, *words: object
    ) -> list[str]:
        def compiled(path: str, **options_passed: object) -> Module:
            assert (path, options_passed) == (str(model), options)
            return tcc.load(artifact)

        monkeypatch.setattr(tcc, "compile", compiled)
        monkeypatch.setattr(sys, "argv", [example, *map(str, (model, *words))])
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines_of


def lines(example: str, *words: object) -> list[str]:
    """Returns the lines that an example prints in a new process."""
    command = [sys.executable, EXAMPLES / example, *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@NEEDS_IO
def test_yolox_sees_a_cat_a_cup_and_a_person(
    yolox: Path, lines_with: Callable[..., list[str]]
) -> None:
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        pytest.skip("scikit-image, whose wheel has photos, is not installed")
    photos = Path(spec.origin).parent / "data"
    files = [photos / f"{name}.png" for name in ("chelsea", "coffee", "astronaut")]
    options = {"preprocess": EXAMPLES / "yolox.toml"}
    printed = lines_with(yolox, options, "yolox_photos.py", sample("yolox_nano.onnx"), *files)
    first = {line.split(":")[0]: line.split(": ")[1].split(" ")[0] for line in printed[::-1]}
    assert first == {"chelsea.png": "cat", "coffee.png": "cup", "astronaut.png": "person"}


@NEEDS_IO
def test_silero_hears_speech_between_silence(
    silero: Path, lines_with: Callable[..., list[str]]
) -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    words = "the quick brown fox jumps over the lazy dog"
    model = sample("silero_vad.onnx")
    printed = lines_with(silero, {}, "silero_speech.py", model, "--say", words)
    stretches = [line.split() for line in printed]
    seconds = [(float(words[2]), float(words[4])) for words in stretches]
    # Half a second of silence precedes the speech, which takes more than 1.5 seconds.
    assert seconds[0][0] > 0.3
    assert sum(end - start for start, end in seconds) > 1.5


@NEEDS_IO
def test_silero_hears_no_speech_in_silence(
    silero: Path, tmp_path: Path, lines_with: Callable[..., list[str]]
) -> None:
    soundfile = pytest.importorskip("soundfile")
    noise = np.random.default_rng(0).standard_normal(16000) * 1e-3
    soundfile.write(tmp_path / "noise.wav", noise, 16000)
    words = (sample("silero_vad.onnx"), tmp_path / "noise.wav")
    assert lines_with(silero, {}, "silero_speech.py", *words) == []


def test_magika_knows_files_of_python_and_of_this_repository() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    types = {
        library / "argparse.py": "python",
        library / "json" / "decoder.py": "python",
        ROOT / "README.md": "markdown",
        ROOT / "pyproject.toml": "toml",
        ROOT / "runtime" / "src" / "api.c": "c",
    }
    printed = lines("magika_files.py", sample("magika_v3_3.onnx"), *types)
    assert [line.rsplit(" ", 2)[1] for line in printed] == [*types.values()]


@pytest.mark.xdist_group("torch")  # one worker loads the modules that export models
def test_gpt2_continues_a_text_in_c(tmp_path: Path) -> None:
    """A small GPT-2 in C gives the tokens that transformers gives without a cache."""
    torch = pytest.importorskip("torch", reason="the extra models is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra models is not installed")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    from models.export import Recipe, export_onnx
    from models.language import Decode

    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.5
    )
    network = transformers.GPT2LMHeadModel(config).eval()
    caches = [torch.randn(1, 2, 5, 16) for _ in range(4)]
    arguments = (torch.tensor([[1]]), torch.tensor([[5]]), caches[:2], caches[2:])
    pasts = [f"past_{kind}.{n}" for kind in "kv" for n in range(2)]
    presents = [name.replace("past", "present") for name in pasts]
    model = export_onnx(
        Recipe(Decode(network), "dynamo", 18), arguments,
        ["input_ids", "position_ids", *pasts], ["logits", *presents],
        {name: {2: "past"} for name in pasts},
    )  # fmt: skip
    onnx.save(model, tmp_path / "decode.onnx")
    out = str(tmp_path / "gpt2.so")
    assert cli.execute(["compile", str(tmp_path / "decode.onnx"), "-o", out, "--json"]) == 0
    command = [compiler, EXAMPLES / "gpt2_cache.c", "-I.", "./gpt2.so", "-Wl,-rpath,$ORIGIN"]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", "gpt2"]
    subprocess.run([*command, *flags], cwd=tmp_path, check=True)
    prompt, count = [3, 14, 15, 92], 12
    words = [str(count), *map(str, prompt)]
    process = subprocess.run(
        ["./gpt2", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = network(torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    assert [int(line) for line in process.stdout.split()] == tokens[len(prompt) :]
    assert len(set(tokens)) > 4, "the text is too uniform to tell a fault"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.[pc]*")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_a_container_has_little_beside_the_artifact(tmp_path: Path) -> None:
    """run.c gives the bytes of a run in Python, and refuses files that are no artifacts or too
    short."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path / "run"
    source = EXAMPLES / "container" / "run.c"
    include = f"-I{ROOT / 'runtime' / 'include'}"
    subprocess.run(
        [compiler, "-Wall", "-Werror", source, include, "-ldl", "-o", program], check=True
    )
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        "two (float[2,3] a, float[3] b) => (float[2,3] s, float[2,3] d) "
        "{ s = Add(a, b)  d = Sub(a, b) }"
    )
    artifact = tmp_path / "two.so"
    tcc.compile(model).save(artifact)
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], np.float32)
    data = a.tobytes() + b.tobytes()
    ran = subprocess.run([program, artifact], input=data, capture_output=True, check=True)
    assert ran.stdout == (a + b).tobytes() + (a - b).tobytes()
    for file, content in ((artifact, data[:-1]), (source, data), (tmp_path / "none", data)):
        failed = subprocess.run([program, file], input=content, capture_output=True, check=False)
        assert failed.returncode == 1
        assert failed.stderr
