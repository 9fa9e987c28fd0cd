"""A process holds its weights in memory once, also during a load, in every way to store weights.

The kernel's counts are the oracle: Pss, which counts 1/n of a page that n processes share, and the
largest resident set since the load began.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import programs
import pytest
from tcc.backends.artifact.emit import LIBRARIES

from tests.processes import finished

SIZE = (64 << 20) + 4096  # the last huge page is not full
MOST = SIZE * 51 // 50
REST = 6 << 20  # bytes that a load and a run may take besides the weights
WEIGHTS = np.zeros(SIZE // 4, np.float32)
WEIGHTS[::7] = np.arange(len(WEIGHTS[::7])) % 5
TOTAL = float(WEIGHTS.sum(dtype=np.float64))  # exact in f32 too, because it is below 2^24

# Loads and runs the model, then prints how many bytes Pss has grown, and by how much the resident
# set has grown at most. Each input line makes it print again.
PROCESS = """
import json, sys
import numpy as np
from tcc.runtime import load

def count(file, name):
    with open(f"/proc/self/{file}") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

pss, resident = count("smaps_rollup", "Pss:"), count("status", "VmRSS:")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the largest resident set is now this one
module = load(sys.argv[1], threads=1)
while True:
    assert module().tolist() == [float(sys.argv[2])]
    grown = {"pss": count("smaps_rollup", "Pss:") - pss}
    grown["peak"] = count("status", "VmHWM:") - resident
    print(json.dumps(grown), flush=True)
    if not sys.stdin.readline():
        break
"""

# Runs the model, and prints the bytes of its largest resident set.
HOST = """
#include <stdio.h>
#include <string.h>
#include "big.h"

int main(void) {
    const tcc_api *api = big_api();
    tcc_model *model;
    float y = 0;
    int64_t shape[1] = {1};
    tcc_tensor out = {
        .data = &y, .device = {TCC_CPU, 0}, .ndim = 1, .dtype = TCC_F32, .shape = shape
    };
    if (api->model_get(&model) || api->call(model, NULL, 0, &out, 1, NULL, NULL)) {
        puts(api->last_error());
        return 1;
    }
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long peak = 0;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0) sscanf(line + 6, "%ld", &peak);
    printf("%.1f %ld\\n", (double)y, peak << 10);
    return 0;
}
"""

Start: TypeAlias = Callable[[str], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def artifact(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "big.so"
    programs.link(programs.totalling(SIZE), kernels, path, weights=[WEIGHTS.tobytes()])
    return path


@pytest.fixture
def start(artifact: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as ending:

        def begin(choice: str) -> subprocess.Popen[str]:
            environment = {"PYTHONPATH": ":".join(sys.path), "TCC_WEIGHTS": choice}
            process = subprocess.Popen(
                (sys.executable, "-c", PROCESS, str(artifact), str(TOTAL)),
                env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            ending.enter_context(process)
            ending.callback(process.kill)
            return process

        yield begin


def grown(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout is not None
    answer: dict[str, int] = json.loads(process.stdout.readline())
    return answer


def grown_now(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return grown(process)


@pytest.mark.parametrize("choice", ["map", "share", "copy", ""])
def test_a_process_never_holds_two_copies(start: Start, choice: str) -> None:
    memory = grown(start(choice))
    assert SIZE - REST < memory["pss"] < MOST + REST
    assert SIZE - REST < memory["peak"] < MOST + REST


@pytest.mark.parametrize(("choice", "copies"), [("map", 1), ("share", 1), ("copy", 2)])
def test_two_processes_hold_one_copy_or_their_own(start: Start, choice: str, copies: int) -> None:
    first = start(choice)
    assert grown(first)["peak"] < MOST + REST
    second = start(choice)
    assert grown(second)["peak"] < MOST + REST
    together = grown_now(first)["pss"] + grown_now(second)["pss"]
    assert copies * SIZE - 2 * REST < together < copies * MOST + 2 * REST


@pytest.mark.parametrize("choice", ["map", "share", "copy"])
def test_a_program_that_links_its_weights_never_holds_two_copies(
    kernels: bytes, tmp_path: Path, choice: str
) -> None:
    library, program = tmp_path / "big.a", tmp_path / "main"
    weights = [WEIGHTS.tobytes()]
    programs.link(
        programs.totalling(SIZE), kernels, library, name="big", weights=weights, emit="static"
    )
    (tmp_path / "main.c").write_text(HOST)
    command = ("gcc", "-std=c11", "main.c", library, *LIBRARIES.split(), "-o", program)
    subprocess.run(command, cwd=tmp_path, check=True)
    result = finished(program, env={"TCC_WEIGHTS": choice})
    assert result.returncode == 0, result.stdout + result.stderr
    total, peak = result.stdout.split()
    assert float(total) == TOTAL
    assert int(peak) < MOST + REST
