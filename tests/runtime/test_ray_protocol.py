"""The protocol of serving: messages, joined runs and groups of CPUs, without Ray.

NumPy is the oracle of the arrays; the messages are written by hand from the protocol's text.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
from tcc.runtime.batches import batch_symbol, rows_within, run_together, same_bytes
from tcc.runtime.core_groups import core_groups
from tcc.runtime.kserve import (
    InferRequest,
    OutputRequest,
    RequestError,
    check_ports,
    metadata,
    read_request,
    write_answer,
)
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import MissingLibraryError, RuntimeFailure

X = ModulePort("x", "f32", (None, 2), "[n,2]")
Y = ModulePort("y", "f32", (None, 2), "[n,2]")
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
BINARY = {
    "name": "x",
    "datatype": "FP32",
    "shape": [1, 2],
    "parameters": {"binary_data_size": 8},
}


def read(message: Any, binary: bytes = b"", ports: tuple[ModulePort, ...] = (X,)) -> InferRequest:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return read_request(text + binary, str(len(text)), ports, (Y,))


class Rows:
    """A model on rows: y is x plus `shift` times the number of rows."""

    inputs, outputs = (X,), (Y,)

    def __init__(self, shift: float = 0) -> None:
        self.shift = shift
        self.sizes: list[int] = []

    def run(self, inputs: Mapping[str, Any], *, seed: int | None = None) -> dict[str, Any]:
        x = inputs["x"]
        self.sizes.append(len(x))
        if np.isnan(x).any():
            raise RuntimeFailure("a NaN")
        return {"y": x + np.float32(self.shift * len(x))}


def test_json_and_bytes_give_the_same_array() -> None:
    values = np.array([[1, 2]], np.float32)
    for request in (read({"inputs": [TENSOR]}), read({"inputs": [BINARY]}, values.tobytes())):
        np.testing.assert_array_equal(request.inputs["x"], values)
        assert request.inputs["x"].dtype == np.float32
        assert request.outputs == (OutputRequest("y", False),)


def test_bytes_at_an_odd_place_become_an_aligned_array() -> None:
    values = np.arange(2, dtype=np.float32)
    for spaces in range(4):
        text = json.dumps({"inputs": [BINARY]}).encode() + b" " * spaces
        assert read(text, values.tobytes()).inputs["x"].flags.aligned


def test_strings_have_a_length_before_them() -> None:
    port = ModulePort("s", "string", (2,), "[2]")
    data = b"\2\0\0\0\xc3\xa9" + b"\0\0\0\0"
    entry = {"name": "s", "datatype": "BYTES", "shape": [2]}
    tensor = entry | {"parameters": {"binary_data_size": len(data)}}
    assert read({"inputs": [tensor]}, data, (port,)).inputs["s"].tolist() == ["é", ""]
    arrays = {"s": np.array(["é", ""], object)}
    answer = InferRequest("", {}, (OutputRequest("s", True),))
    body, headers = write_answer("m", answer, arrays, (port,))
    assert body[int(headers["Inference-Header-Content-Length"]) :] == data


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "no JSON": (b"{", b""),
    "no object": ([], b""),
    "too deep": (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "a NaN": (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[NaN,1]}]}', b""),
    "inputs no list": ({"inputs": {}}, b""),
    "missing": ({"inputs": []}, b""),
    "twice": ({"inputs": [TENSOR, TENSOR]}, b""),
    "unknown": ({"inputs": [TENSOR | {"name": "z"}]}, b""),
    "name no string": ({"inputs": [TENSOR | {"name": ["x"]}]}, b""),
    "datatype": ({"inputs": [TENSOR | {"datatype": "FP64"}]}, b""),
    "negative size": ({"inputs": [TENSOR | {"shape": [-1, 2]}]}, b""),
    "boolean size": ({"inputs": [TENSOR | {"shape": [True, 2]}]}, b""),
    "huge size": ({"inputs": [TENSOR | {"shape": [1 << 62, 2]}]}, b""),
    "rank": ({"inputs": [TENSOR | {"shape": [2]}]}, b""),
    "fixed size": ({"inputs": [TENSOR | {"shape": [1, 3]}]}, b""),
    "fewer elements": ({"inputs": [TENSOR | {"data": [1]}]}, b""),
    "a string": ({"inputs": [TENSOR | {"data": [1, "2"]}]}, b""),
    "a boolean": ({"inputs": [TENSOR | {"data": [1, True]}]}, b""),
    "too large": ({"inputs": [TENSOR | {"data": [1, 1e39]}]}, b""),
    "infinite": (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1e999,1]}]}',
        b"",
    ),
    "both forms": ({"inputs": [TENSOR | BINARY]}, bytes(8)),
    "no form": ({"inputs": [{k: v for k, v in TENSOR.items() if k != "data"}]}, b""),
    "bytes missing": ({"inputs": [BINARY]}, bytes(7)),
    "bytes left": ({"inputs": [BINARY]}, bytes(9)),
    "negative bytes": ({"inputs": [BINARY | {"parameters": {"binary_data_size": -8}}]}, bytes(8)),
    "boolean bytes": ({"inputs": [BINARY | {"parameters": {"binary_data_size": True}}]}, bytes(1)),
    "unknown output": ({"inputs": [TENSOR], "outputs": [{"name": "z"}]}, b""),
    "output twice": ({"inputs": [TENSOR], "outputs": [{"name": "y"}, {"name": "y"}]}, b""),
    "id": ({"id": 1, "inputs": [TENSOR]}, b""),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_message_is_refused(case: str) -> None:
    message, binary = HOSTILE[case]
    with pytest.raises(RequestError) as caught:
        read(message, binary)
    assert caught.value.status == 400


@pytest.mark.parametrize("length", ["", "-1", "1e3", "٣", "9" * 30, "1000"])
def test_a_length_of_the_header_that_lies_is_refused(length: str) -> None:
    with pytest.raises(RequestError, match="no length"):
        read_request(b"{}", length, (X,), (Y,))


@pytest.mark.parametrize("size", [3, 5, 2**32 - 1])
def test_a_string_that_lies_about_its_length_is_refused(size: int) -> None:
    port = ModulePort("s", "string", (1,), "[1]")
    data = size.to_bytes(4, "little") + b"abcd"
    tensor = {"name": "s", "datatype": "BYTES", "shape": [1]}
    tensor |= {"parameters": {"binary_data_size": len(data)}}
    with pytest.raises(RequestError):
        read({"inputs": [tensor]}, data, (port,))


def test_a_byte_that_is_no_boolean_is_refused() -> None:
    port = ModulePort("b", "bool", (1,), "[1]")
    tensor = {"name": "b", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}}
    assert read({"inputs": [tensor]}, b"\1", (port,)).inputs["b"].tolist() == [True]
    with pytest.raises(RequestError, match="0 and 1"):
        read({"inputs": [tensor]}, b"\2", (port,))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_json_answers_hold_no_value_that_json_lacks(value: float) -> None:
    request = InferRequest("7", {}, (OutputRequest("y", False),))
    with pytest.raises(RequestError, match="binary"):
        write_answer("m", request, {"y": np.array([[1, value]], np.float32)}, (Y,))


def test_json_answers_keep_every_bit() -> None:
    values = np.random.default_rng(1).integers(0, 0x7F800000, (50, 2), np.uint32).view(np.float32)
    request = InferRequest("7", {}, (OutputRequest("y", False),))
    message = json.loads(write_answer("m", request, {"y": values}, (Y,))[0])
    assert message["id"] == "7"
    again = np.array(message["outputs"][0]["data"], np.float32).reshape(50, 2)
    assert again.tobytes() == values.tobytes()


def test_a_port_that_the_protocol_lacks_is_refused() -> None:
    check_ports((X, Y), "m")
    for port in (ModulePort("z", "i4", (1,), "[1]"), ModulePort("z", "f32", (1,), "[1]", 0)):
        with pytest.raises(RuntimeFailure, match="'z'"):
            check_ports((X, port), "m")


def test_metadata_marks_sizes_of_a_run() -> None:
    assert metadata("m", (X,), (Y,))["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    ]


def test_joined_runs_give_each_request_its_own_rows() -> None:
    model = Rows()
    requests = [{"x": np.full((n, 2), i, np.float32)} for i, n in enumerate((1, 2, 0, 3, 9, 1))]
    answers = run_together(model, requests, 4)
    assert model.sizes == [3, 0, 3, 9, 1]
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], request["x"])


def test_a_failing_request_fails_alone() -> None:
    requests = [{"x": np.full((1, 2), v, np.float32)} for v in (1, np.nan, 3)]
    first, second, third = run_together(Rows(), requests, 4)
    assert isinstance(second, RuntimeFailure)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert (first["y"][0, 0], third["y"][0, 0]) == (1, 3)


def test_a_model_whose_rows_depend_on_their_number_is_not_joined() -> None:
    assert rows_within(Rows(), 4, 1e9, "m") == 4
    with pytest.raises(RuntimeFailure, match="other bytes"):
        rows_within(Rows(shift=1), 4, 1e9, "m")


def test_no_run_is_joined_that_breaks_the_latency() -> None:
    assert rows_within(Rows(), 4, 1e-9, "m") == 1


def test_the_batch_symbol_stands_alone_and_first() -> None:
    assert batch_symbol((X, Y)) == "n"
    for text in ("[m,2]", "[2,n]", "[n,n]", "[n,s]", "[]", "[n+1,2]"):
        assert batch_symbol((X, ModulePort("z", "f32", (None,), text))) == ""


def test_bytes_tell_zeros_and_shapes_apart() -> None:
    zero = np.zeros((1, 2), np.float32)
    assert same_bytes({"y": zero}, {"y": zero.copy()})
    assert not same_bytes({"y": zero}, {"y": -zero})
    assert not same_bytes({"y": zero}, {"y": zero.reshape(2, 1)})


def test_groups_hold_neighbours_and_are_disjoint() -> None:
    """The machine has eight CPUs in two packages, where n and n + 4 share a core."""
    groups = core_groups(range(8), 2, lambda cpu: (cpu % 4 // 2, cpu % 4, cpu))
    assert groups == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert core_groups(range(5), 2, lambda cpu: (0, cpu, cpu)) == [(0, 1), (2, 3)]
    for size in (0, 6):
        with pytest.raises(RuntimeFailure, match="no group"):
            core_groups(range(5), size, lambda cpu: (0, cpu, cpu))


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "port": {"port": 80},
    "replicas": {"replicas": 0},
    "cores": {"cores": True},
    "latency": {"latency": float("nan")},
    "name": {"name": "a/b"},
    "ongoing": {"latency": 0.1, "rows": 64},
}


@pytest.mark.parametrize("word", BAD_OPTIONS)
def test_an_option_out_of_range_is_refused_by_name(word: str, tmp_path: Path) -> None:
    artifact = tmp_path / "m.so"
    artifact.touch()
    with pytest.raises(RuntimeFailure, match=word):
        tcc.ray.application(artifact, **BAD_OPTIONS[word])


def test_texts_of_a_command_become_options(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="'cores' has the wrong type"):
        tcc.ray.from_arguments({"artifact": str(tmp_path), "cores": "two"})
    with pytest.raises(RuntimeFailure, match="artifact=PATH"):
        tcc.ray.from_arguments({"cores": "2"})
    with pytest.raises(RuntimeFailure, match="not there"):
        tcc.ray.from_arguments({"artifact": str(tmp_path / "none.so"), "cores": "2"})


def test_a_missing_library_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tcc.runtime.ray_replica", raising=False)
    artifact = tmp_path / "m.so"
    artifact.touch()
    with pytest.raises(MissingLibraryError, match=r"tcc\[ray\]"):
        tcc.ray.application(artifact)


def test_all_threads_of_a_pinned_process_stay_on_its_group() -> None:
    program = """
import os, threading
from tcc.runtime.core_groups import core_groups, pin_process
started, end = threading.Event(), threading.Event()
old = threading.Thread(target=lambda: (started.set(), end.wait()))
old.start()
started.wait()
group = core_groups(os.sched_getaffinity(0), 1)[-1]
pin_process(group)
new = threading.Thread(target=end.wait)
new.start()
tasks = [int(name) for name in os.listdir("/proc/self/task")]
assert len(tasks) >= 3
assert all(os.sched_getaffinity(task) == set(group) for task in tasks)
end.set()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
