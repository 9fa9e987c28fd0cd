"""Measures this machine's constants with generated code, in a few seconds.

`tcc.runtime.loop_times` times the loops of `calibrate_text`.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

from tcc import runtime
from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.backends.cpu.calibrate_kernels import (
    BLOCKS,
    LIBRARY,
    TIMED,
    VECTORS,
    function_kernel,
    gather_kernel,
    link_launches,
)
from tcc.backends.cpu.calibrate_text import loops_text
from tcc.backends.cpu.codegen import compile_object
from tcc.backends.cpu.llvm.emit import KernelText
from tcc.runtime.loop_times import UNROLL, LoopTimer, best_seconds, take
from tcc.schedule.cpu.machine import Cache, Machine, Memory
from tcc.schedule.cpu.shipped_machines import machine_for
from tcc.schedule.footprint import LINE
from tcc.target import Target
from tcc.temporary import temporary_folder
from tcc.zipped import zip_equal

_BUFFERS = 2 << 20  # bytes of all buffers of a kernel
_LAUNCHES = 20_000
# How many vector multiply-adds a CPU may complete per cycle.
_ISSUE = (0.5, 1.0, 2.0)

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


def calibrate(target: Target) -> Machine:
    """Returns this machine's constants, measured with code for `target` (its own CPU).

    A loop cannot measure which part of a latency a core hides behind other work. The constants for
    this come from the machine file that tcc ships for the CPU.

    Raises ToolError if nothing can link, and UserError if the machine cannot run the code.
    """
    cores = len(os.sched_getaffinity(0))
    profile = target.profile
    code, caches = LoadedCode(loops_text(target), target), (profile.l1, profile.l2, profile.l3)
    vector = profile.vector_bits // 8
    with LoopTimer(code.address, caches, vector, cores) as loops:
        step_seconds = loops.seconds(loops.spin) / 32
        fma = loops.seconds(loops.over("multiply")) / UNROLL
        fmas = min(_ISSUE, key=lambda rate: abs(step_seconds / fma / rate - 1))
        # A cycle is the time of `fmas` multiply-adds, because dense vector code can lower the
        # clock.
        cycle = fma * fmas
        all_cores = max(fma, loops.seconds(loops.over("multiply"), cores) / UNROLL) * fmas
        # The rate of reading aligned vectors, divided by the rate of reading vectors that are
        # shifted from their alignment. If vectors are shorter than a cache line, only some of the
        # shifted vectors cross a line; `crossing` below accounts for this.
        across = loops.rate("read", loops.second) / loops.rate(
            "read", loops.second, shift=vector // 2
        )
        functions, call = _functions(target, cycle)
        launch, fork = _launches(target, cores)
        shipped = machine_for(profile)
        foreign = loops.exchange(loops.second // 2) * cycle if cores > 1 else shipped.foreign
        return replace(
            shipped,
            name=f"{profile.cpu}, measured",
            cores=cores,
            ghz=_round(1e-9 / all_cores),
            fmas=fmas,
            fma_latency=_round(loops.seconds(loops.over("chain")) / UNROLL / cycle),
            loads=_round(loops.rate("read", loops.first) * cycle / vector),
            stores=_round(loops.rate("write", loops.first) * cycle / vector),
            crossing=_round(1 + (across - 1) * LINE / vector),
            functions=functions,
            call=call,
            l2=_cache(loops, profile.l2, loops.second, cycle),
            l3=_cache(loops, _usable_bytes(loops, profile.l3), loops.third, cycle),
            memory=_memory(loops, cores),
            foreign=_round(foreign),
            fork=_round(fork),
            launch=_round(launch),
        )


def _memory(loops: LoopTimer, cores: int) -> Memory:
    """Returns the rates and the latency of memory.

    Reading is measured in order and with prefetches; the faster way counts as the rate.
    """
    size = loops.beyond
    one_core, all_cores = ([loops.rate(n, size, c) for n in ("read", "ahead")] for c in (1, cores))
    best = max(one_core) * max(all_cores)
    in_order, ahead = ((a * b / best) ** 0.5 for a, b in zip_equal(one_core, all_cores))
    return Memory(
        read=_round(max(one_core)),
        write=_round(loops.rate("write", size)),
        read_all=_round(max(all_cores)),
        write_all=_round(loops.rate("write", size, cores)),
        latency=_round(loops.latency(size)),
        in_order=_round(in_order),
        ahead=_round(ahead),
    )


def _usable_bytes(loops: LoopTimer, size: int) -> int:
    """Returns how many bytes of the last cache one core can use; other cores may share it."""
    third_rate, memory_rate = loops.rate("read", loops.third), loops.rate("read", loops.beyond)
    for part in (1, 2, 3, 4, 6):
        if loops.rate("read", size // part) > (third_rate * memory_rate) ** 0.5:
            return size // part
    return loops.third


def _cache(loops: LoopTimer, size: int, span: int, cycle: float) -> Cache:
    read_rate, write_rate = (_round(loops.rate(name, span) * cycle) for name in ("read", "write"))
    return Cache(size, read_rate, write_rate)


def _round(value: float) -> float:
    """Returns the value rounded to three digits; measurements are not repeatable beyond that."""
    return float(f"{value:.3g}")


class LoadedCode:
    """The functions of an LLVM module, linked and loaded as an artifact is."""

    def __init__(self, text: str, target: Target) -> None:
        """Raises RuntimeError with LLVM's message for invalid text, and ToolError if linking
        fails."""
        with temporary_folder() as folder:
            (folder / "code.o").write_bytes(compile_object(text, target))
            link_flags = ("-shared", "code.o", "-o", "code.so", "-lm")
            run_tool((*find_toolchain().command, *link_flags), folder)
            self._library = ctypes.CDLL(str(folder / "code.so"))

    def address(self, name: str) -> int:
        """Returns the address of the function `name`."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0


def _functions(target: Target, cycle: float) -> tuple[dict[str, float], float]:
    """Returns (costs, cost of a C library function), in cycles per vector.

    `costs` maps each timed function to its cost.
    """
    width = target.profile.lanes(32)
    kernels = {name: function_kernel(name, arity, width, target) for name, arity in TIMED}
    kernels["gather"] = gather_kernel(width, target)
    costs = {name: _kernel_cycles(kernel, target, cycle) for name, kernel in kernels.items()}
    library = function_kernel(LIBRARY, 2, width, target)
    return costs, _kernel_cycles(library, target, cycle)


def _kernel_cycles(text: KernelText, target: Target, cycle: float) -> float:
    """Returns the cycles per vector of a kernel of `calibrate_kernels`."""
    count = VECTORS * BLOCKS * target.profile.lanes(32)
    span = take(_BUFFERS)
    x, y, indices = (span.address + n * 2 * ctypes.sizeof(ctypes.c_float * count) for n in range(3))
    (ctypes.c_float * count).from_address(x)[:] = [0.5 + i / count for i in range(count)]
    (ctypes.c_int32 * count).from_address(indices)[:] = [i * 7 % count for i in range(count)]
    buffers = (ctypes.c_void_p * 3)(x, y, indices)
    code = LoadedCode(text.llvm, target)
    entry = _KERNEL(code.address(text.name))

    def run(passes: int) -> None:
        entry(ctypes.addressof(buffers), None, 0, passes * BLOCKS, None)

    seconds = best_seconds(run)
    span.mapping.close()
    return _round(seconds / (VECTORS * BLOCKS) / cycle)


def _launches(target: Target, cores: int) -> tuple[float, float]:
    """Returns (seconds of a launch on the calling thread, seconds of a launch on all threads)."""
    with temporary_folder() as folder:
        serial_module, parallel_module = (
            runtime.load(link_launches(folder, _LAUNCHES, cores, target, serial=serial))
            for serial in (True, False)
        )

        def seconds(module: runtime.Module) -> float:
            def run(times: int) -> None:
                for _ in range(times):
                    module()

            return best_seconds(run) / _LAUNCHES

        return seconds(serial_module), seconds(parallel_module)
