"""The replica of a served model: a class that Ray Serve runs in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from ray import serve
from ray.util.metrics import Counter, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from tcc.runtime import kserve
from tcc.runtime.batches import (
    batch_symbol,
    rows_within,
    run_together,
    same_bytes,
    sample_inputs,
)
from tcc.runtime.core_groups import core_groups, pin_process
from tcc.runtime.module import load
from tcc.runtime.ray import ServeOptions
from tcc.runtime.reports import RuntimeFailure

_SECONDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0]
_ROWS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
_JSON = {"Content-Type": "application/json"}


def bound(artifact: str, name: str, options: Mapping[str, Any]) -> serve.Application:
    """Returns the application of Ray Serve for a model; `options` are the fields of
    `ServeOptions`."""
    settings = ServeOptions(**options)
    deployment = serve.deployment(KServeModel).options(
        name=name,
        num_replicas=settings.replicas,
        max_ongoing_requests=settings.ongoing,
        max_queued_requests=settings.queued,
        ray_actor_options={"num_cpus": settings.cores},
    )
    return deployment.bind(artifact, name, options)


class KServeModel:
    """A replica: it answers the requests of one model, one run at a time, on its own CPUs."""

    def __init__(self, artifact: str, name: str, options: Mapping[str, Any]) -> None:
        self._artifact, self._name, self._options = artifact, name, ServeOptions(**options)
        self._groups = core_groups(os.sched_getaffinity(0), self._options.cores)
        self._pin(serve.get_replica_context().rank)
        self._model = model = load(artifact, threads=self._options.cores)
        self._ports = (*model.inputs, *model.outputs)
        kserve.check_ports(self._ports, artifact)
        self._runs = ThreadPoolExecutor(1, "tcc-run")
        self._sample = self._expected = None
        sizes = [size for port in model.inputs for size in port.shape]
        if None not in sizes or batch_symbol(self._ports):
            self._sample = sample_inputs(model.inputs, 1)
            self._expected = model.run(self._sample, seed=0)
        rows = 1
        if self._options.latency:
            rows = rows_within(model, self._options.rows, self._options.latency, artifact)
        self._rows = rows
        # A batch has the requests that came during the run before it: nobody waits for others.
        joined = serve.batch(max_batch_size=rows, batch_wait_timeout_s=0)(self._run)
        self._outcome = joined if rows > 1 else self._run_alone
        self._requests = Counter(
            "tcc_requests", "Requests for runs by HTTP status", ("model", "status")
        )
        self._run_seconds = Histogram(
            "tcc_run_seconds", "Seconds of a run", boundaries=_SECONDS, tag_keys=("model",)
        )
        self._run_requests = Histogram(
            "tcc_run_requests", "Requests of a run", boundaries=_ROWS, tag_keys=("model",)
        )

    def _pin(self, rank: Any) -> None:
        local_rank = 0 if rank is None else rank.local_rank
        pin_process(self._groups[local_rank % len(self._groups)])

    def reconfigure(self, _config: Any, rank: Any) -> None:
        """Moves the replica to the CPUs of its rank, which Ray changes when others end."""
        self._pin(rank)

    async def check_health(self) -> None:
        """Raises RuntimeFailure unless a run gives the bytes of the first; Ray then replaces it."""
        if self._sample is None:
            return
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._runs, self._is_sound):
            raise RuntimeFailure(
                "the model gives other results than at its start", where=self._artifact
            )

    def _is_sound(self) -> bool:
        if self._sample is None or self._expected is None:
            return True
        try:
            return same_bytes(self._model.run(self._sample, seed=0), self._expected)
        except RuntimeFailure:
            return False

    async def __call__(self, request: Request) -> Response:
        """Answers a request of the KServe v2 protocol."""
        try:
            return await self._answer(request)
        except kserve.RequestError as failure:
            return _refusal(str(failure), failure.status)

    async def _answer(self, request: Request) -> Response:
        match [part for part in request.url.path.split("/") if part]:
            case ["v2"]:
                _require(request, "GET")
                extensions = ["binary_tensor_data"]
                return _json({"name": "tcc", "version": "2", "extensions": extensions})
            case ["v2", "health", "live" | "ready"]:
                _require(request, "GET")
                return _json({})
            case ["v2", "models", name, *path]:
                if name != self._name:
                    raise kserve.RequestError(f"no model {name[:80]!r} is served", status=404)
                return await self._answer_model(request, path)
        raise kserve.RequestError("no such page", where=request.url.path[:200], status=404)

    async def _answer_model(self, request: Request, path: list[str]) -> Response:
        if path[:1] == ["versions"] and path[1:2] == ["1"]:
            path = path[2:]
        match path:
            case []:
                _require(request, "GET")
                model = self._model
                return _json(kserve.metadata(self._name, model.inputs, model.outputs))
            case ["ready"]:
                _require(request, "GET")
                return _json({})
            case ["infer"]:
                _require(request, "POST")
                return await self._counted(request)
        raise kserve.RequestError("no such page", where=request.url.path[:200], status=404)

    async def _counted(self, request: Request) -> Response:
        status = 500
        try:
            response = await self._infer(request)
            status = response.status_code
            return response
        except kserve.RequestError as failure:
            status = failure.status
            raise
        finally:
            self._requests.inc(tags={"model": self._name, "status": str(status)})

    async def _infer(self, request: Request) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise kserve.RequestError("the server takes no compressed bodies", status=415)
        body = await self._body(request)
        length = request.headers.get(kserve.HEADER_LENGTH)
        model = self._model
        message = kserve.read_request(body, length, model.inputs, model.outputs)
        answer = await self._outcome(message.inputs)
        if isinstance(answer, RuntimeFailure):
            raise await self._blamed(answer)
        text, headers = kserve.write_answer(self._name, message, answer, model.outputs)
        return Response(text, 200, headers)

    async def _body(self, request: Request) -> bytes:
        """Returns the body; raises RequestError if it is too long, or shorter than it claims."""
        chunks, size = [], 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > self._options.body_bytes:
                    raise kserve.RequestError(
                        f"the body has more than {self._options.body_bytes} bytes", status=413
                    )
                chunks.append(chunk)
        except ClientDisconnect:
            raise kserve.RequestError("the client left before the end of the body") from None
        claimed = request.headers.get("content-length")
        if claimed is not None and claimed != str(size):
            raise kserve.RequestError("Content-Length is not the length of the body")
        return b"".join(chunks)

    async def _run_alone(self, inputs: Any) -> Any:
        [answer] = await self._run([inputs])
        return answer

    async def _run(self, requests: list[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        begin = perf_counter()
        answers = await loop.run_in_executor(
            self._runs, run_together, self._model, requests, self._rows
        )
        tags = {"model": self._name}
        self._run_seconds.observe(perf_counter() - begin, tags=tags)
        self._run_requests.observe(len(requests), tags=tags)
        return answers

    async def _blamed(self, failure: RuntimeFailure) -> kserve.RequestError:
        """Returns the error for a failed run: the request's fault if the model is still sound."""
        loop = asyncio.get_running_loop()
        sound = await loop.run_in_executor(self._runs, self._is_sound)
        return kserve.RequestError(str(failure), status=400 if sound else 500)


def _require(request: Request, method: str) -> None:
    if request.method != method:
        raise kserve.RequestError(f"this page takes {method} only", status=405)


def _json(value: Mapping[str, Any]) -> Response:
    return Response(json.dumps(value), 200, _JSON)


def _refusal(text: str, status: int) -> Response:
    return Response(json.dumps({"error": text}), status, _JSON)
