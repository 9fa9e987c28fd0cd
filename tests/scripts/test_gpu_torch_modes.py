"""The table of gpu_check shows the modes in which torch.compile ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

torch = pytest.importorskip("torch", reason="the worker needs torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from gpu import report, worker
from gpu.devices import Gpu


def test_the_table_names_the_modes_that_the_worker_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes = []

    def compiled(*_: object, mode: str, **__: object) -> NoReturn:
        modes.append(mode)
        raise InterruptedError

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(worker, "_reference", lambda *_: torch.nn.Identity())
    monkeypatch.setattr(worker, "_graph", lambda *_: {"nodes": []})
    item = {"inputs": [], "precision": "bf16", "graph": ""}
    request = {"item": item, "folder": ""}
    for task in ("compiled", "autotuned"):
        with pytest.raises(InterruptedError):
            worker.TASKS[task](request, Gpu())
    assert modes == ["reduce-overhead", "max-autotune"]
    results = {"rehearsal": True, "date": "", "archs": [], "device": {}, "items": {}}
    lines = report.table({**results, "refused": {}, "skipped": []}).splitlines()
    for column, mode in zip(("compile", "tuned"), modes, strict=True):
        assert f"{column}: torch.compile in mode {mode}, which records CUDA graphs" in lines
        assert any(f"{column} ms" in line for line in lines)
