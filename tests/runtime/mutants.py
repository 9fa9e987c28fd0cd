"""Programs of real artifacts with some words changed and a right checksum, and the outcomes of
their runs.

`mutants.c` runs each program in a new process, with inaccessible pages behind each array.
`scripts/runtime_bars --only mutants` runs ten thousand.
"""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from tcc.artifact import read_program
from tcc.backends.artifact.encode_program import HEADER_WORDS
from tcc.driver import compile_model
from tcc.options import read_options

SOURCE = Path(__file__).with_name("mutants.c")
INCLUDE = Path(__file__).resolve().parents[2] / "runtime" / "include"
SECONDS, OPEN_SIZE = 2, 5
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

# Together the models have fixed, symbolic and data-dependent sizes, loops, views and calls. Values
# that are only declared are weights.
MODELS = MappingProxyType(
    {
        "dense": """g (float[4,16] x) => (float[4,8] y) <float[16,32] w, float[32,8] v>
            { a = MatMul (x, w) b = Relu (a) c = MatMul (b, v) y = Softmax (c) }""",
        "convolutions": """g (float[n,3,h,w] x) => (float[n,4,a,b] y)
            <float[8,3,3,3] k, float[4,8,3,3] l>
            { a = Conv <pads=[1,1,1,1]> (x, k) b = Relu (a)
              c = MaxPool <kernel_shape=[2,2], strides=[2,2]> (b)
              y = Conv <pads=[1,1,1,1]> (c, l) }""",
        "attention": """g (int64[n,s] i, float[n,s,s] m) => (float[n,s,16] y)
            <float[50,16] e, float[16,16] q, float[16,16] k, float[16,16] v, float[16] g,
             float[16] h>
            { x0 = Gather (e, i) x = LayerNormalization (x0, g, h)
              a = MatMul (x, q) b = MatMul (x, k) c = MatMul (x, v)
              t = Transpose <perm=[0,2,1]> (b) d = MatMul (a, t) d1 = Add (d, m)
              f = Softmax (d1) z = MatMul (f, c) y = Add (z, x) }""",
        "data": """g (float[n] x, int64[1] k)
            => (float[m] y, int64[1,r] z, float[p] t, int64[p] ti)
            { a = Greater (x, x) z = NonZero (x) b = Compress (x, a) c = Relu (b) y = Exp (c)
              t, ti = TopK (x, k) }""",
        "loop": """g (float[n,8] x, int64 trips) => (float[n,8] y, float[t,n,8] z) <float[8,8] w>
            { go = Constant <value = bool {1}> ()
              y, z = Loop (trips, go, x) <body = b (int64 i, bool c, float[n,8] s)
                => (bool c2, float[n,8] s2, float[n,8] o)
                { c2 = Identity (c) r = MatMul (s, w) s2 = Tanh (r) o = Relu (r) }> }""",
        "recurrence": """g (float[s,2,8] x) => (float[s,1,2,8] y) <float[1,32,8] w, float[1,32,8] r>
            { y = LSTM <hidden_size=8> (x, w, r) }""",
        "joined": """g (float[2,8,10,10] x) => (float[2,8,10,10] y)
            <float[8,8,3,3] k, float[8,16,3,3] l, float[8,24,1,1] m>
            { a = Conv <pads=[1,1,1,1]> (x, k) b = Concat <axis=1> (x, a)
              c = Conv <pads=[1,1,1,1]> (b, l) d = Concat <axis=1> (b, c) e = Conv (d, m)
              p = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (e) y = Add (p, x) }""",
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The number of programs that finished, were refused, took too long or ended in a signal, and
    the numbers of the last kind."""

    ran: int
    refused: int
    late: int
    signals: tuple[int, ...]


def build_runner(folder: Path) -> Path:
    """Builds the program of mutants.c."""
    program = folder / "mutants"
    flags = ("-std=c11", "-O1", "-rdynamic", f"-I{INCLUDE}")
    subprocess.run(("cc", *flags, str(SOURCE), "-o", str(program), "-ldl"), check=True)
    return program


def compiled(name: str, folder: Path) -> Path:
    """Compiles a model with random weights."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {MODELS[name]}')
    rng = np.random.default_rng(1)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.uniform(-0.2, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.value_info[:]
    artifact = folder / f"{name}.so"
    compile_model(model, read_options({"target": "cpu", "cpu": "x86-64-v3", "jobs": 1}), artifact)
    return artifact


def mutants(program: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """Yields programs of the same length in which up to three words are replaced by other words of
    the program, or by near, small or very large numbers."""
    (length,) = struct.unpack_from("<q", program, 16)
    words, strings = struct.unpack_from(f"<{length}q", program), program[length * 8 :]
    for _ in range(count):
        changed = list(words)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(HEADER_WORDS, length)
            old, other = changed[at], changed[rng.randrange(HEADER_WORDS, length)]
            neighbours = (old + 1, old - 1, 2 * old, old // 2, old + 64, old - 64)
            new = rng.choice(
                (other, rng.randrange(-3, 30), *neighbours, 0, -1, 1 << 40, (1 << 62) + 3)
            )
            changed[at] = min(max(new, _LEAST), _MOST)
        yield sealed(changed, strings)


def sealed(words: list[int], strings: bytes) -> bytes:
    """Returns the program of these words with a right checksum."""
    body = struct.pack(f"<{len(words) - HEADER_WORDS}q", *words[HEADER_WORDS:]) + strings
    return struct.pack(f"<{HEADER_WORDS}q", *words[:4], zlib.crc32(body)) + body


def run(runner: Path, artifact: Path, programs: Iterator[bytes] | list[bytes]) -> Outcome:
    """Runs an artifact with other programs in place of its own; returns the outcomes."""
    records = runner.with_name(f"{artifact.stem}.records")
    with records.open("wb") as file:
        for record in (read_program(artifact), *programs):
            file.write(struct.pack("<q", len(record)) + record)
    variables = {"TCC_NUM_THREADS": "1", "TCC_WEIGHTS": "map", "TCC_MEMORY": "256M"}
    command = (str(runner), str(artifact), str(records), str(SECONDS), str(OPEN_SIZE))
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    ran, refused, late, signals = map(int, process.stdout.split())
    numbers = tuple(int(line) for line in process.stderr.split())
    assert len(numbers) == signals
    return Outcome(ran - 1, refused, late, numbers)
