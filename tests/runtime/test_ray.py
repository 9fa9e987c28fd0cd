"""Ray Serve answers public clients with the bytes of local runs, also beside broken clients."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnx
import pytest
import tcc

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from serve.clients import Case, Server, ask_all, ask_beside, ask_slowly, infer_message, post, server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"
)
MODEL = """<ir_version: 8, opset_import: ["": 17]>
rows (float[n,3,4] x) => (float[n,2] y, int64[n] k)
<float[12,2] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, int64[2] s = {-1,12}>
{ f = Reshape(x, s)  z = MatMul(f, w)  y = Softmax<axis = 1>(z)
  k = ArgMax<axis = 1, keepdims = 0>(z) }"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "rows.so"
    tcc.compile(onnx.parser.parse_model(MODEL)).save(path)
    return path


@pytest.fixture(scope="module")
def running(artifact: Path) -> Iterator[Server]:
    with server(artifact, replicas=1, latency=60.0, rows=4, body_bytes=4096) as target:
        yield target


@pytest.fixture(scope="module")
def cases(artifact: Path) -> list[Case]:
    module = tcc.load(artifact)
    generator = np.random.default_rng(3)
    inputs = [{"x": generator.random((n, 3, 4), np.float32)} for n in (1, 2, 3, 1, 5)]
    return [Case(x, {k: v.tobytes() for k, v in module.run(x).items()}) for x in inputs]


@pytest.mark.parametrize("binary", [True, False])
def test_a_public_client_gets_the_bytes_of_a_local_run(
    running: Server, artifact: Path, binary: bool
) -> None:
    if importlib.util.find_spec("tritonclient") is None:
        pytest.skip("the extra ray-check is not installed")
    from tritonclient import http

    client: Any = http.InferenceServerClient(f"127.0.0.1:{running.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(running.name)
    assert not client.is_model_ready("other")
    assert client.get_model_metadata(running.name)["inputs"][0]["shape"] == [-1, 3, 4]
    values = np.random.default_rng(4).random((3, 3, 4), np.float32)
    tensor = http.InferInput("x", values.shape, "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    outputs = [http.InferRequestedOutput(name, binary_data=binary) for name in ("k", "y")]
    result = client.infer(running.name, [tensor], outputs=outputs)
    for name, expected in tcc.load(artifact).run({"x": values}).items():
        assert result.as_numpy(name).tobytes() == expected.tobytes()
    client.close()


def test_many_clients_get_their_own_answers_once(running: Server, cases: list[Case]) -> None:
    report = asyncio.run(ask_all(running, cases, clients=24, requests=96))
    assert not report.wrong
    assert report.right == 96


def test_a_slow_client_delays_nobody(running: Server, cases: list[Case]) -> None:
    assert not asyncio.run(ask_slowly(running, cases[0], pieces=5)).wrong


def test_bodies_that_lie_about_their_length_are_refused(running: Server, cases: list[Case]) -> None:
    head, body = infer_message(running.name, "1", cases[0].inputs)
    path = f"/v2/models/{running.name}/infer"
    claims = {"Inference-Header-Content-Length": "100000"}
    longer = post(path, len(body), claims)
    assert asyncio.run(ask_beside(running, cases[0], longer, body, end=False)) == "400"
    for end in (True, False):
        status = asyncio.run(ask_beside(running, cases[0], head, body[:-1], end=end))
        assert status in ("400", "closed")


def test_a_long_body_is_refused(running: Server, cases: list[Case]) -> None:
    head = post(f"/v2/models/{running.name}/infer", 5000)
    assert asyncio.run(ask_beside(running, cases[0], head, bytes(5000), end=False)) == "413"


def test_metrics_count_the_requests(running: Server, cases: list[Case]) -> None:
    asyncio.run(ask_all(running, cases, clients=1, requests=1))
    for _ in range(120):  # Ray collects them every few seconds
        text = urlopen(f"http://127.0.0.1:{running.metrics}/metrics", timeout=60).read().decode()
        if 'status="200"' in text and "ray_tcc_requests" in text:
            return
        asyncio.run(asyncio.sleep(0.5))
    pytest.fail("the metrics do not name the requests")


def test_a_killed_replica_loses_no_request(running: Server, cases: list[Case]) -> None:
    async def ask() -> Any:
        asking = asyncio.create_task(ask_all(running, cases, clients=4, requests=60))
        assert await asyncio.to_thread(running.kill_replica) == 1
        return await asking

    report = asyncio.run(ask())
    assert not report.wrong
    assert report.right == 60
