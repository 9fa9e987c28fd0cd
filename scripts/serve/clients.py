"""Starts the server as a child, and sends requests: good, slow and broken clients on sockets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
_LENGTH = "Inference-Header-Content-Length"
_DATATYPES = {"float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}
_PAUSE_SECONDS = 0.05
# A request that was in a dying replica is sent again, up to this number of attempts.
_ATTEMPTS = 400


@dataclass
class Server:
    """A running server: its process, ports and the name of its model."""

    process: subprocess.Popen[str]
    port: int
    metrics: int
    name: str

    def kill_replica(self) -> int:
        """Kills a replica; returns 1, or 0 if none runs now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def server(artifact: Path, python: str = sys.executable, **options: Any) -> Iterator[Server]:
    """Yields a server of `artifact`, and ends it; raises RuntimeError if it does not start."""
    command = [python, str(HERE / "server.py"), str(artifact), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended at its start: {process.wait()}")
            yield Server(process, **json.loads(line))
        finally:
            process.stdin.close()
            process.stdout.close()


def infer_message(
    name: str, identity: str, arrays: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[bytes, bytes]:
    """Returns the head and the body of a request for a run with binary inputs and outputs."""
    inputs = [
        {
            "name": key,
            "shape": list(array.shape),
            "datatype": _DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for key, array in arrays.items()
    ]
    message = {"id": identity, "inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(message).encode()
    body = b"".join([text, *(array.tobytes() for array in arrays.values())])
    return post(f"/v2/models/{name}/infer", len(body), {_LENGTH: str(len(text))}), body


def post(path: str, length: int, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns the head of a POST whose body claims to have `length` bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
    return "\r\n".join((*lines, "", "")).encode()


@dataclass
class Answer:
    """An answer: its HTTP status, headers in small letters, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def outputs(self) -> tuple[str, dict[str, bytes]]:
        """Returns the id, and the bytes of each binary output by name."""
        end = int(self.headers[_LENGTH.lower()])
        message = json.loads(self.body[:end])
        arrays = {}
        for output in message["outputs"]:
            begin, end = end, end + output["parameters"]["binary_data_size"]
            arrays[output["name"]] = self.body[begin:end]
        return message.get("id", ""), arrays


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Returns the next answer of a connection; raises EOFError if it ends before."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = [line.split(":", 1) for line in head[1:] if line]
    headers = {key.strip().lower(): value.strip() for key, value in pairs}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:  # chunked
        body = b""
        while size := int((await reader.readuntil(b"\r\n")), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return Answer(int(head[0].split()[1]), headers, body)


@dataclass
class AnswerReport:
    """The outcome of many requests; `seconds` are those of right answers, retries included."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    retries: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, other: AnswerReport) -> None:
        """Adds the outcome of other requests."""
        self.right += other.right
        self.wrong += other.wrong
        self.retries += other.retries
        self.seconds += other.seconds

    def percentile(self, share: float) -> float:
        """Returns the seconds within which this share of the requests was answered."""
        return float(np.percentile(self.seconds, share * 100))


@dataclass(frozen=True)
class Case:
    """Inputs of a run and the bytes of its outputs."""

    inputs: dict[str, np.ndarray[Any, Any]]
    expected: dict[str, bytes]


class Client:
    """A connection that asks one request after another, and again where the server says 5xx."""

    def __init__(self, target: Server, report: AnswerReport) -> None:
        self._server, self._report = target, report
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the streams of the connection, which is opened if there is none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._server.port)
        return self._streams

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask(self, identity: str, case: Case) -> None:
        """Sends a request until it is answered, and notes whether the answer is the case's."""
        begin = perf_counter()
        for _ in range(_ATTEMPTS):
            answer = await self._attempt(*infer_message(self._server.name, identity, case.inputs))
            if answer is not None and answer.status < 500:
                break
            self._report.retries += 1
            self.close()
            await asyncio.sleep(_PAUSE_SECONDS)  # the server starts another replica
        else:
            self._report.wrong.append(f"{identity}: no answer")
            return
        right = answer.status == 200 and answer.outputs() == (identity, case.expected)
        if right:
            self._report.right += 1
            self._report.seconds.append(perf_counter() - begin)
        else:
            self._report.wrong.append(f"{identity}: status {answer.status}: {answer.body[:200]!r}")

    async def _attempt(self, head: bytes, body: bytes) -> Answer | None:
        try:
            reader, writer = await self.connect()
            writer.write(head + body)
            await writer.drain()
            return await read_answer(reader)
        except (OSError, EOFError):
            return None

    async def is_silent(self) -> bool:
        """Returns True if the server sent nothing that no request asked for."""
        if self._streams is None:
            return True
        try:
            return not await asyncio.wait_for(self._streams[0].read(1), 0.01)
        except TimeoutError:
            return True


async def ask_all(target: Server, cases: list[Case], clients: int, requests: int) -> AnswerReport:
    """Returns the report of `requests` requests from `clients` connections, all open at once."""
    report = AnswerReport()
    members = [Client(target, report) for _ in range(clients)]
    await asyncio.gather(*(member.connect() for member in members))
    numbers = iter(range(requests))

    async def work(member: Client) -> None:
        for number in numbers:
            await member.ask(str(number), cases[number % len(cases)])
        if not await member.is_silent():
            report.wrong.append("an answer without a request")
        member.close()

    await asyncio.gather(*(work(member) for member in members))
    return report


async def echo_all(target: Server, body: bytes, clients: int, requests: int) -> None:
    """Sends a body to the echo from several connections; raises ValueError for another answer."""
    numbers = iter(range(requests))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        for _ in numbers:
            writer.write(post("/echo", len(body)) + body)
            await writer.drain()
            if (await read_answer(reader)).body != body:
                raise ValueError("the echo gave other bytes")
        writer.close()

    await asyncio.gather(*(work() for _ in range(clients)))


async def ask_beside(target: Server, case: Case, head: bytes, body: bytes, end: bool) -> str:
    """Sends a head and part of its body, has a good client answered, then ends or goes on.

    With `end` the client leaves; otherwise it sends nothing more, closes its half and reads.
    Returns the status of the answer to the broken client, or "closed".
    """
    report = AnswerReport()
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.write(head + body)
    await writer.drain()
    good = Client(target, report)
    await good.ask("good", case)
    good.close()
    if report.wrong:
        raise AssertionError(report.wrong[0])
    if end:
        writer.close()
        return "closed"
    writer.write_eof()
    try:
        return str((await asyncio.wait_for(read_answer(reader), 60)).status)
    except (OSError, EOFError):
        return "closed"
    finally:
        writer.close()


async def ask_slowly(target: Server, case: Case, pieces: int) -> AnswerReport:
    """Sends one request in pieces, with an answered request of another client between two."""
    report = AnswerReport()
    head, body = infer_message(target.name, "slow", case.inputs)
    data = head + body
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    good = Client(target, report)
    size = -(-len(data) // pieces)
    for begin in range(0, len(data), size):
        writer.write(data[begin : begin + size])
        await writer.drain()
        await good.ask(str(begin), case)
    answer = await read_answer(reader)
    if (answer.status, answer.outputs()) != (200, ("slow", case.expected)):
        report.wrong.append("the slow client got another answer")
    writer.close()
    good.close()
    return report
