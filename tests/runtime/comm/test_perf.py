"""tcc-perf: its options, its checks of results, and its table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from library import build_program, run
from tcc.backends.artifact.toolchain import runtime_folder

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts"))

from comm_times import table

# The ratio of busbw to algbw for each kind on two ranks, as in doc/PERFORMANCE.md of nccl-tests.
KINDS = {
    "all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "all_gather_v": 0.5,
    "all_to_all": 0.5, "all_to_all_v": 0.5, "broadcast": 1.0, "sendrecv": 1.0,
}  # fmt: skip
TYPES, OPS = 8, 5


@pytest.fixture(scope="module")
def perf(tmp_path_factory: pytest.TempPathFactory, comm_library: Path) -> Path:
    source = runtime_folder() / "bench" / "perf"
    return build_program(tmp_path_factory.mktemp("perf"), str(source), comm_library)


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_every_type_and_operator_are_checked(perf: Path, kind: str) -> None:
    sizes = ("-b", "24", "-e", "5K", "-f", "13", "-n", "1", "-w", "0")
    rows = table(run(perf, kind, *sizes, "-d", "all", "-o", "all", "-r", "1", "-g", "2"))
    assert len(rows) == TYPES * OPS * 3
    assert {row["wrong"] for row in rows} == {"0"}
    assert len({(row["type"], row["op"]) for row in rows}) == TYPES * OPS
    for row in rows:
        bus = KINDS[kind] * float(row["algbw"])
        assert float(row["busbw"]) == pytest.approx(bus, abs=0.0101)


def test_a_wrong_result_is_counted_and_is_the_exit_code(tmp_path: Path, comm_library: Path) -> None:
    text = (runtime_folder() / "bench" / "perf.c").read_text()
    for right in (  # the right values of reductions, and of messages
        "default: return reduced(b->op, size, index)",
        "case TCC_COMM_SEND: return value_of(b->op, (rank + size - 1) % size, size, index)",
    ):
        assert text.count(right + ";") == 1
        text = text.replace(right, f"{right} + (index == 5)")
    (tmp_path / "planted.c").write_text(text)
    program = build_program(tmp_path, str(tmp_path / "planted"), comm_library)
    for kind in ("all_reduce", "sendrecv"):
        command = (program, kind, "-b", "64", "-e", "64", "-n", "1", "-w", "0", "-g", "2")
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 1
        assert [row["wrong"] for row in table(process.stdout)] == ["2"]  # one on each rank


def test_bandwidths_follow_from_the_mean_time(perf: Path) -> None:
    text = run(perf, "all_gather", "-b", "1M", "-e", "2M", "--stepbytes", "512K", "-n", "3",
               "-g", "2", "-c", "0", "--symmetric", "--rewrite", "--pin", "-a", "3")  # fmt: skip
    rows = table(text)
    assert "all_gather, 2 ranks, backend shared, symmetric, pinned" in text
    assert [int(row["bytes"]) for row in rows] == [1 << 20, 3 << 19, 2 << 20]
    for row in rows:
        algorithm = int(row["bytes"]) / float(row["mean"]) * 1e-3
        assert float(row["algbw"]) == pytest.approx(algorithm, rel=1e-3, abs=0.01)
        assert float(row["busbw"]) == pytest.approx(algorithm / 2, rel=1e-3, abs=0.01)
        assert float(row["p50"]) <= float(row["p99"]) <= float(row["max"])
        ratio = float(row["p50"]) / float(row["copy"])
        assert float(row["copies"]) == pytest.approx(ratio, rel=0.01, abs=0.01)
        assert row["wrong"] == "-"


@pytest.mark.parametrize("kind", ["all_gather_v", "all_to_all_v", "sendrecv"])
def test_unequal_parts_and_messages_of_three_ranks_are_right(perf: Path, kind: str) -> None:
    sizes = ("-b", "8", "-e", "200K", "-f", "7", "-n", "1", "-w", "0", "-m", "2")
    rows = table(run(perf, kind, *sizes, "-d", "i64", "-g", "3"))
    assert len(rows) == 6
    assert {row["wrong"] for row in rows} == {"0"}
    assert [int(row["bytes"]) for row in rows] == [8 * 7**i for i in range(6)]


def test_a_barrier_has_one_row(perf: Path) -> None:
    (row,) = table(run(perf, "barrier", "-n", "2", "-w", "0", "-g", "2"))
    assert (row["bytes"], row["busbw"], row["copies"], row["wrong"]) == ("0", "0.00", "0.00", "0")
    assert float(row["p50"]) > 0


def test_sizes_are_numbers_with_or_without_a_unit(perf: Path) -> None:
    text = run(perf, "-b", "16777216", "-e", "16M", "-n", "1", "-w", "0", "-g", "1", "-c", "0")
    assert [row["bytes"] for row in table(text)] == ["16777216"]


def test_help_has_an_example_and_names_every_option(perf: Path) -> None:
    text = run(perf, "--help")
    assert "\n  tcc-perf all_reduce -g 2 --pin -b 4K -e 32M\n" in text
    source = (runtime_folder() / "bench" / "perf.c").read_text()
    options = re.findall(r'\{"(\w+)", [01], NULL, ', source)
    assert len(options) == 19
    assert [name for name in options if f"--{name} " not in text and name != "help"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gather",), "gather: expected a KIND"),
        (("-b", "4Q"), "4Q: expected a number such as 8, 4K or 32M"),
        (("-b", "-1"), "-1: expected a number"),
        (("-e", "9999999999G"), "9999999999G: expected a number"),
        (("-b", "64", "-e", "32"), "8 <= MIN <= MAX"),
        (("-e", "1025G"), "MAX <= 1024G"),
        (("-f", "1"), "a factor of 2 or more"),
        (("-o", "mean"), "mean: expected sum, prod, min, max, avg or all"),
        (("-d", "f8"), "f8: expected a datatype"),
        (("-a", "4"), "--average"),
        (("broadcast", "-g", "1", "-r", "1"), "--root: expected a rank"),
        (("sendrecv", "-g", "1"), "sendrecv: expected 2 or more ranks"),
        (("all_reduce", "-c", "0", "again"), "again: expected options alone after KIND"),
        (("--what",), "unrecognized option"),
    ],
)
def test_wrong_options_are_named(perf: Path, arguments: tuple[str, ...], said: str) -> None:
    process = subprocess.run((perf, *arguments), capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert said in process.stderr
