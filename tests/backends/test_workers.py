"""Tests of pools of worker processes, with workers that only echo, fail or die."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tcc.backends.workers import WorkerFailedError, WorkerPool

ECHO = """
import os
from tcc.backends.workers import serve

def answer(request):
    if request == "die":
        os.abort()
    if request == "print":
        print("to standard output", flush=True)
        os.write(1, b"and past Python")
    if request == "environment":
        return dict(os.environ), ""
    return request, "it was told to" if request == "fail" else ""

def main():
    serve(answer)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "echo_worker"


def test_answers_come_in_the_requested_order_and_more_requests_may_follow(echo: str) -> None:
    pool = WorkerPool(echo, 2)
    numbers = [pool.submit(word) for word in "abcd"]
    assert pool.answers(numbers[2:]) == ["c", "d"]
    assert pool.answers([pool.submit("e"), *numbers[:2]]) == ["e", "a", "b"]
    pool.abandon()


def test_printed_text_is_not_an_answer(echo: str) -> None:
    pool = WorkerPool(echo, 1)
    assert pool.answers([pool.submit("print"), pool.submit("a")]) == ["print", "a"]
    failing = pool.submit("fail")
    with pytest.raises(
        WorkerFailedError, match="it was told to\nto standard output\nand past Python"
    ):
        pool.answers([failing])
    pool.abandon()


def test_only_variables_with_search_paths_reach_a_worker(
    echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "HOME": "/home/me"})
    for name in ("LLVM_X", "AMDGCN_USE_BUFFER_OPS", "PYTHONOPTIMIZE", "PYTHONHASHSEED", "LC_ALL"):
        monkeypatch.setitem(os.environ, name, "7")
    pool = WorkerPool(echo, 1)
    (environment,) = pool.answers([pool.submit("environment")])
    pool.abandon()
    fixed = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "0"}
    fixed |= {"TRITON_DISABLE_LINE_INFO": "1"}
    places = (
        "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "XDG_CACHE_HOME",
        "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "LC_CTYPE",
    )  # fmt: skip
    assert {name: environment.pop(name) for name in fixed} == fixed
    assert set(environment) <= set(places)
    assert environment["HOME"] == "/home/me"


@pytest.mark.parametrize(("word", "why"), [("fail", "it was told to"), ("die", "SIGABRT ended it")])
def test_a_failure_ends_all_waiting(echo: str, word: str, why: str) -> None:
    pool = WorkerPool(echo, 2)
    pool.submit("a")
    number = pool.submit(word)
    later = [pool.submit("b") for _ in range(8)]
    for numbers in ([number], later):
        with pytest.raises(WorkerFailedError, match=why) as error:
            pool.answers(numbers)
        assert error.value.number == number
    pool.abandon()


def test_where_no_process_can_be_started_that_is_the_failure(
    echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull)
    pool = WorkerPool(echo, 2)
    with pytest.raises(WorkerFailedError, match="no compiler process can be started"):
        pool.answers([pool.submit("a")])
    pool.abandon()
