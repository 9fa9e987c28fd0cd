"""Times Gloo's all_reduce (f32, sum) between two pinned processes, for comm_check.

    comm_gloo.py MIN MAX FACTOR RUNS

Prints a line for each size: bytes, and the median microseconds of rank 0.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

RANKS = 2


def run(rank: int, path: str, min_bytes: int, max_bytes: int, factor: int, runs: int) -> None:
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    size = min_bytes
    while size <= max_bytes:
        data = torch.zeros(size // 4)
        times = []
        for _ in range(runs + 5):
            began = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - began)
        if rank == 0:
            print(size, f"{1e6 * statistics.median(times[5:]):.2f}", flush=True)
        size *= factor
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        child = os.fork()
        run(0 if child else 1, store, *map(int, sys.argv[1:5]))
        if child:
            os.waitpid(child, 0)
        else:
            os._exit(0)
