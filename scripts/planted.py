"""Plants faults in the compiler on purpose, and reduces models that run into them.

A fault replaces the expression of one row of the op table by another row's. Compiled code is then
wrong, but references are not. The models are seeded graphs of about thirty operators of many kinds.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper
from reduction import MODEL, Array, ReductionCandidate, Trials, reduce_model
from tcc import runtime
from tcc.driver import compile_model, evaluate_model
from tcc.errors import TccError, UserError
from tcc.ops import OPS
from tcc.options import read_options
from tcc.runtime.compare import compare

# Faults: (op of OPS whose expression is replaced, op whose expression replaces it, ONNX operator).
FAULTS = (
    ("sigmoid", "tanh", "Sigmoid"), ("tanh", "erf", "Tanh"), ("relu", "abs", "Relu"),
    ("exp", "cosh", "Exp"), ("sin", "cos", "Sin"), ("cos", "sin", "Cos"),
    ("abs", "neg", "Abs"), ("neg", "abs", "Neg"), ("floor", "ceil", "Floor"),
    ("ceil", "floor", "Ceil"), ("erf", "tanh", "Erf"), ("softsign", "tanh", "Softsign"),
    ("sign", "neg", "Sign"), ("round", "ceil", "Round"), ("add", "sub", "Add"),
    ("sub", "add", "Sub"), ("mul", "add", "Mul"), ("max", "min", "Max"), ("min", "max", "Min"),
    ("reduce_sum", "reduce_max", "ReduceSum"),
)  # fmt: skip
_SIZE = 6
_SECONDS = 60
_SEEDS = 5


@contextmanager
def planted(row: str, other: str) -> Iterator[None]:
    """Plants a fault while the context is open: the op `row` gets the expression of `other`.

    So code that is compiled in the context computes `other` for each node of `row`.
    """
    right = OPS[row].expr
    object.__setattr__(OPS[row], "expr", OPS[other].expr)
    try:
        yield
    finally:
        object.__setattr__(OPS[row], "expr", right)


def example(seed: int, operator: str, nodes: int = 30) -> onnx.ModelProto:
    """Returns a model of `nodes` random nodes on [6, 6] arrays; `operator` is used once.

    Its node has the index `nodes` * 2 // 3.
    """
    rng = np.random.default_rng(seed)
    node_protos, values = [], ["x"]
    kinds = [operator if n == nodes * 2 // 3 else _kind(rng, operator) for n in range(nodes)]
    for number, kind in enumerate(kinds):
        out = f"v{number}"
        recent = values[-6:]
        first = values[-1] if rng.random() < 0.6 else str(rng.choice(recent))
        reads = [first]
        if kind in ("Add", "Sub", "Mul", "Max", "Min"):
            reads.append(str(rng.choice(recent)))
        elif kind == "MatMul":
            reads.append("w")
        elif kind == "ReduceSum":
            reads.append("axes")
        attrs = {"perm": [1, 0]} if kind == "Transpose" else {}
        node_protos.append(helper.make_node(kind, reads, [out], name=f"node.{number}", **attrs))
        # ReduceSum gives [6, 1]; the addition broadcasts it to [6, 6], the shape of all values.
        if kind == "ReduceSum":
            node_protos.append(helper.make_node("Add", [out, first], [f"{out}.wide"]))
            out += ".wide"
        values.append(out)
    read_names = {name for node in node_protos for name in node.input}
    ends = [name for node in node_protos for name in node.output if name not in read_names]
    weights = rng.standard_normal((_SIZE, _SIZE)).astype(np.float32) / 3
    graph = helper.make_graph(
        node_protos,
        "planted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [_SIZE, _SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(np.array([1], np.int64), "axes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _kind(rng: np.random.Generator, without: str) -> str:
    kinds = ["Tanh", "Relu", "Neg", "Abs", "Sin", "Add", "Mul", "Sub", "Max", "MatMul"]
    kinds += ["Transpose", "Softmax", "Sigmoid", "Identity"]
    return str(rng.choice([kind for kind in kinds if kind != without]))


def mismatch(folder: Path, row: str, other: str) -> bool:
    """Returns True if the model in `folder`, compiled with a fault, differs from the evaluator.

    `planted(row, other)` plants the fault. `folder` also has the inputs.
    """
    model = folder / MODEL
    names = [value.name for value in onnx.load(model).graph.input]
    inputs = {name: np.load(folder / f"input{n}.npy") for n, name in enumerate(names)}
    reference = evaluate_model(model, inputs)
    with planted(row, other):
        compiled = compile_model(model, read_options({"jobs": 1}), folder / "model.so")
    outputs = runtime.load(compiled.path, 1).run(inputs)
    return not all(compare(name, outputs[name], reference[name], 1e-4).ok for name in reference)


def in_a_process(folder: Path, row: str, other: str) -> bool:
    """Returns the result of `mismatch`, which runs in a forked process.

    Returns False if the process is not done after a minute; it is then killed.
    """
    child = os.fork()
    if child == 0:
        verdict = 2
        try:
            verdict = int(mismatch(folder, row, other))
        except (TccError, runtime.RuntimeFailure):
            pass  # tcc refused the model or its run, which is not the planted fault
        finally:
            os._exit(verdict)
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def reduce_planted(number: int, folder: Path) -> tuple[ReductionCandidate, int]:
    """Returns (reduced model for FAULTS[number], number of trials).

    A random graph may not show the fault, because both ops agree on its values or because a rewrite
    removes the op. Then the graph of the next seed is tried.
    """
    row, other, operator = FAULTS[number]
    path = folder / f"planted{number}.onnx"
    inputs: dict[str, Array] = {
        "x": np.random.default_rng(number).standard_normal((_SIZE, _SIZE)).astype(np.float32)
    }
    trials = Trials(
        lambda trial_folder: in_a_process(trial_folder, row, other),
        folder / f"trials{number}",
        lambda line: None,
    )
    *seeds, last_seed = (number + len(FAULTS) * n for n in range(_SEEDS))
    for seed in seeds:
        onnx.save(example(seed, operator), path)
        with suppress(UserError):
            return reduce_model(path, inputs, trials), trials.count
    onnx.save(example(last_seed, operator), path)
    return reduce_model(path, inputs, trials), trials.count


def planted_report(count: int, folder: Path) -> int:
    """Reduces a model for each of the first `count` faults and prints a line for each.

    Returns 1 if fewer than nine tenths of the models are reduced to at most five nodes, else 0.
    Trials are kept in `folder`, so a run that was stopped continues where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    small = 0
    for number, (row, other, operator) in enumerate(FAULTS[:count]):
        try:
            with TemporaryDirectory(dir=folder):
                reduced, trial_count = reduce_planted(number, folder)
        except TccError as error:
            print(f"{number:2} {row} as {other}: {error.what}", flush=True)
            continue
        kinds = [node.op_type for node in reduced.proto.graph.node]
        is_small = len(kinds) <= 5 and operator in kinds
        small += is_small
        print(
            f"{number:2} {row} as {other}: {len(kinds)} nodes left ({', '.join(kinds)}), "
            f"{trial_count} trials",
            flush=True,
        )
    print(f"{small} of {min(count, len(FAULTS))} reduced to five nodes or fewer")
    return int(small * 10 < 9 * min(count, len(FAULTS)))
