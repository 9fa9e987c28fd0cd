"""Ranks load the first plan that fits the memory of all of them, and check before a run that they
loaded the same plan."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tcc.artifact import read_manifest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.ranks import run_ranks

from .test_plans import X, assert_close, mlp, tcc

# The weights have 460 kB. With two ranks, each holds 330 kB by the first plan and 230 kB by the
# second.
WHOLE, FAST, LEAN = "600K", "400K", "300K"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the model for one rank and for two ranks with two plans, and another
    file with the same ports."""
    folder = tmp_path_factory.mktemp("memory")
    onnx.save(mlp(), folder / "mlp.onnx")
    ended = tcc(Path(), folder, "plan", "mlp.onnx", "--ranks", "2", "-o", "lean.json")
    assert ended.returncode == 0, ended.stderr
    lean = json.loads((folder / "lean.json").read_text())
    rows = [
        row | {"strategy": "whole, whole -> whole"} if row["node"] == "h" else row
        for row in lean["nodes"]
    ]
    assert rows != lean["nodes"]
    (folder / "fast.json").write_text(json.dumps(lean | {"nodes": rows}))
    plans = [folder / f"{name}.json" for name in ("fast", "lean")]
    options = {"jobs": 1, "ranks": "1,2"}
    compile_model(folder / "mlp.onnx", read_options(options | {"plan": plans}), folder / "mlp.so")
    compile_model(folder / "mlp.onnx", read_options(options), folder / "other.so")
    np.save(folder / "x.npy", X)
    return folder


def test_plans_for_one_number_of_ranks_lie_in_one_file(folder: Path) -> None:
    one, fast, lean = read_manifest(folder / "mlp.so")["variants"]
    assert "plan" not in one
    assert "plan" not in fast
    assert (fast["ranks"], lean["ranks"], lean["plan"]) == (2, 2, 1)
    assert lean["target"].endswith(" on 2 ranks, plan 2")
    assert lean["weights"]["bytes"] < 300_000 < fast["weights"]["bytes"] < one["weights"]["bytes"]


def test_a_model_too_large_for_one_rank_runs_on_two(
    comm_library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "mlp.so", "--input", "x=@x.npy")
    monkeypatch.setenv("TCC_MEMORY", LEAN)
    process = tcc(comm_library, folder, *words)
    assert process.returncode == 2
    text = " ".join(process.stderr.split())
    match = re.search(
        r"model 'mlp' needs (\d+) bytes a rank on 1 rank, for weights and a run, and TCC_MEMORY "
        r"allows 307200: its plan for 2 ranks needs (\d+) bytes a rank: start as many",
        text,
    )
    assert match, text
    one, _, lean = read_manifest(folder / "mlp.so")["variants"]
    for entry, number in zip((one, lean), map(int, match.groups()), strict=True):
        least = entry["weights"]["bytes"] + entry["arena_bytes"]
        assert least <= number <= least + (64 << 10)  # plus scratch and the memory that ranks share
    divided = tcc(comm_library, folder, *words, "--nproc", "2", "--output", "out{rank}")
    assert divided.returncode == 0, divided.stderr
    for rank in range(2):
        assert_close({name: np.load(folder / f"out{rank}" / f"{name}.npy") for name in "yz"})


CHOOSE = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
import numpy as np
import tcc
from tcc.cli.joined import joined
from tcc.runtime import comm as comms

ending = ExitStack()
_, folder, early, *arguments = sys.argv
rank = int(os.environ["TCC_RANK"])
name, memory = arguments[2 * rank : 2 * rank + 2]
os.environ["TCC_MEMORY"] = memory
try:
    if early == "early":  # before ranks can ask one another
        module = tcc.load(f"{folder}/{name}")
        comm = comms.open()
        comm.share()
    elif early == "command":
        module, comm = ending.enter_context(joined(Path(folder, name)))
    else:
        comm = comms.open()
        module = tcc.load(f"{folder}/{name}", comm=comm)
    x = np.load(f"{folder}/x.npy")
    y = module.run({"x": x})["y"]
    print(module.variant, y.tobytes().hex())
except tcc.TccError as error:
    print(" ".join(str(error).split()))
ending.close()
"""


def choose(
    library: Path,
    folder: Path,
    first: tuple[str, str],
    second: tuple[str, str],
    early: str = "late",
) -> list[str]:
    """Returns the output of both ranks, which load a file with (file, memory) as given."""
    return run_ranks(2, CHOOSE, library, folder, early, *first, *second)


@pytest.mark.parametrize(
    ("first", "second", "variant"),
    [(FAST, FAST, 1), (FAST, LEAN, 2), (LEAN, FAST, 2), (LEAN, LEAN, 2)],
)
def test_all_ranks_take_the_first_plan_that_fits_all(
    comm_library: Path, folder: Path, first: str, second: str, variant: int
) -> None:
    printed = choose(comm_library, folder, ("mlp.so", first), ("mlp.so", second))
    assert printed[0] == printed[1]
    assert printed[0].split()[0] == str(variant)


def test_a_rank_without_memory_ends_all(comm_library: Path, folder: Path) -> None:
    printed = choose(comm_library, folder, ("mlp.so", FAST), ("mlp.so", "100K"))
    assert "needs" in printed[1]
    assert "on 2 ranks, for weights and a run, and TCC_MEMORY allows 102400" in printed[1]
    assert "no plan in the file fits" in printed[1]
    assert "(rank 0: 1 2, rank 1: none)" in printed[0] or printed[1][20:90] in printed[0]


@pytest.mark.parametrize("names", [("mlp.so", "other.so"), ("other.so", "mlp.so")])
def test_ranks_with_other_files_are_told_of_both(
    comm_library: Path, folder: Path, names: tuple[str, str]
) -> None:
    printed = choose(comm_library, folder, (names[0], WHOLE), (names[1], WHOLE))
    matches = [
        re.search(r"rank 0 has model '(\w+)' with the hash (\w+), rank 1 model '(\w+)' with the "
                  r"hash (\w+): load one file", text)
        for text in printed
    ]  # fmt: skip
    assert all(matches), printed
    assert {m.groups() for m in matches if m} == {matches[0].groups() if matches[0] else ()}
    first, first_hash, second, second_hash = matches[0].groups() if matches[0] else ("",) * 4
    assert (f"{first}.so", f"{second}.so") == names
    assert first_hash != second_hash


def test_ranks_that_loaded_other_plans_are_told_of_both(comm_library: Path, folder: Path) -> None:
    printed = choose(comm_library, folder, ("mlp.so", FAST), ("mlp.so", LEAN), "early")
    for text in printed:
        assert "different plans of model 'mlp' for 2 ranks (rank 0: 1, rank 1: 2)" in text
    printed = choose(comm_library, folder, ("mlp.so", LEAN), ("mlp.so", LEAN), "early")
    assert printed[0] == printed[1]
    assert printed[0].startswith("2 ")


def test_the_name_of_a_file_is_not_compared(comm_library: Path, folder: Path) -> None:
    shutil.copy(folder / "mlp.so", folder / "twin.so")
    printed = choose(comm_library, folder, ("mlp.so", FAST), ("twin.so", FAST))
    assert printed[0] == printed[1]
    assert printed[0].startswith("1 ")


def test_ranks_of_tcc_run_choose_together(comm_library: Path, folder: Path) -> None:
    printed = choose(comm_library, folder, ("mlp.so", FAST), ("mlp.so", LEAN), "command")
    assert printed[0] == printed[1]
    assert printed[0].startswith("2 ")


COPY = """
import copy, os, sys
import numpy as np
import tcc
from tcc.runtime import comm as comms

_, folder, shared = sys.argv
comm = comms.open()
if shared == "shared":
    comm.share()
module = tcc.load(f"{folder}/mlp.so", comm=None if shared == "shared" else comm)
x = np.load(f"{folder}/x.npy")
first = module.run({"x": x})["y"]
if os.environ["TCC_RANK"] == "0":
    module = copy.copy(module)  # no other rank makes an instance now
second = module.run({"x": x})["y"]
print(first.tobytes() == second.tobytes(), second.tobytes().hex())
"""


@pytest.mark.parametrize("shared", ["shared", "own"])
def test_a_rank_copies_its_module_alone(comm_library: Path, folder: Path, shared: str) -> None:
    """Ranks compare plans once, so that a copy does not wait for other ranks."""
    variables = {"TCC_MEMORY": LEAN}
    first, second = run_ranks(2, COPY, comm_library, folder, shared, **variables)
    assert first.split()[0] == "True"
    assert first == second
