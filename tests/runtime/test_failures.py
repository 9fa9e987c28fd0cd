"""If system calls fail or resource limits are small, a run gives a right result or a status, and no
signal.

scripts/runtime_bars --only failures tries all calls in all ways.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from failures import Failures, build_failures
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program
from trials import HERE, build_stress

from tests.processes import finished
from tests.runtime.interposer import INTERPOSER, imported, interposed

CHOICES = ("map", "copy", "share", "")


@pytest.fixture(scope="module")
def failures(kernels: bytes) -> Iterator[Failures]:
    """Builds the files in a folder that another user can read."""
    folder = Path(tempfile.mkdtemp(prefix="tcc-failures-"))
    yield build_failures(folder, kernels)
    shutil.rmtree(folder)


# ---- calls that fail -----------------------------------------------------------------------------

# Functions that artifacts and libtcc_comm call, besides those of failing.c. They cannot fail, or
# they do their work even if they fail, like close.
UNFAILING = """
_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __cxa_atexit __cxa_finalize __errno_location
__gmon_start__ __isoc99_sscanf __sched_cpucount __stack_chk_fail __tls_get_addr clock_gettime close
closedir dirfd dl_iterate_phdr dladdr dlerror dlsym fclose fprintf free freeaddrinfo freelocale
gai_strerror geteuid getnameinfo getpid munmap pthread_attr_destroy pthread_attr_getstacksize
pthread_attr_setdetachstate pthread_attr_setstacksize pthread_cond_broadcast pthread_cond_destroy
pthread_cond_init pthread_cond_signal pthread_cond_timedwait pthread_cond_wait
pthread_condattr_destroy pthread_condattr_init pthread_condattr_setclock pthread_detach
pthread_join pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock
pthread_once pthread_self pthread_setspecific pthread_sigmask qsort sched_getcpu sched_yield
secure_getenv sprintf
shutdown sigdelset sigfillset snprintf strerror sysconf uselocale vsnprintf
strtod strtok_r strtol strtoll strtoull strchr strcmp strcpy strcspn strlen strncmp strrchr strspn
strstr memchr memcmp memcpy memmem memmove memset
ceil cos erf exp floor fmod frexp hypot ldexp log log1p pow rint round roundf sin sqrt tanh
""".split()


def test_every_call_that_can_fail_is_made_to(failures: Failures, comm_library: Path) -> None:
    calls = imported(failures.artifact) | imported(comm_library)
    assert calls - interposed() - set(UNFAILING) == set()
    assert not interposed() & set(UNFAILING)


@pytest.mark.parametrize(("threads", "choice"), [(1, "map"), (1, "copy"), (2, "share"), (2, "")])
def test_calls_of_a_c_host_fail(failures: Failures, threads: int, choice: str) -> None:
    rng = random.Random(f"host {threads} {choice}")
    calls = failures.host(threads, TCC_WEIGHTS=choice, **failures.failing(0, False, 0)).calls
    assert calls > 200
    for _ in range(3 if choice in ("share", "") else 8):  # a search in /proc takes long
        at = rng.choice((rng.randint(1, 150), rng.randint(1, calls), calls - rng.randint(0, 150)))
        on, error = rng.random() < 0.5, rng.randrange(5)
        outcome = failures.host(threads, TCC_WEIGHTS=choice, **failures.failing(at, on, error))
        assert outcome.good, (at, on, error, outcome)


def test_calls_of_a_python_host_fail(failures: Failures) -> None:
    rng = random.Random("python")
    calls = failures.python(2, TCC_WEIGHTS="copy", **failures.failing(0, False, 0)).calls
    assert calls > 200
    for _ in range(6):
        at, on, error = rng.randint(1, calls), rng.random() < 0.5, rng.randrange(5)
        outcome = failures.python(2, TCC_WEIGHTS="copy", **failures.failing(at, on, error))
        assert outcome.good, (at, on, error, outcome)


@pytest.mark.parametrize("name", ["planned", "handles"])
def test_sanitizers_see_nothing(sanitized: Sanitized, tmp_path: Path, name: str) -> None:
    wrapped = ("-DWRAPPED", *(f"-Wl,--wrap={function}" for function in sorted(interposed())))
    program = sanitized.program("break_runtime", HERE / "broken.c", INTERPOSER, flags=wrapped)
    record = encode_program(programs.planned() if name == "planned" else programs.handles())
    path = tmp_path / "record"
    path.write_bytes(struct.pack("<q", len(record)) + record)
    printed = run_sanitized(program, str(path), str(len(programs.KERNEL_NAMES)))
    trials, _, failures, _ = printed.split()
    assert int(trials) > 100
    assert int(failures) > 50


# ---- resource limits -----------------------------------------------------------------------------

KIB, MIB = 1 << 10, 1 << 20
STRANGER = 54321  # a user without processes
# The rows of `ulimit -a` with small values, but for the time of CPUs: its signal is the user's.
LIMITS = {
    resource.RLIMIT_AS: (16 * MIB, 40 * MIB, 100 * MIB, 1024 * MIB),
    resource.RLIMIT_DATA: (1 * MIB, 4 * MIB, 16 * MIB),
    resource.RLIMIT_STACK: (0, 64 * KIB),
    resource.RLIMIT_NOFILE: (0, 3, 4, 5),
    resource.RLIMIT_NPROC: (0, 1),
    resource.RLIMIT_FSIZE: (0, 1, 1 * MIB, 64 * MIB),
    **dict.fromkeys(
        (resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE, resource.RLIMIT_SIGPENDING,
         resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO,
         resource.RLIMIT_RTTIME, resource.RLIMIT_RSS, 10), (0,),
    ),
}  # fmt: skip


def test_all_limits_are_tried() -> None:
    rows = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    assert rows - {resource.RLIMIT_CPU} <= set(LIMITS)


@pytest.mark.parametrize("which", LIMITS)
def test_no_limit_ends_a_c_host(failures: Failures, which: int) -> None:
    root = which == resource.RLIMIT_NPROC  # the limit does not apply to root
    if root and os.geteuid():
        pytest.skip("cannot become another user")
    for number, value in enumerate(LIMITS[which]):
        for threads in (1, 2):
            told = {"TCC_WEIGHTS": CHOICES[(number + threads) % 4], "TCC_PERF_MAP": "1"}
            user = (STRANGER,) if root else ()
            outcome = failures.host(threads, which, value, *user, **told)
            assert outcome.good, (value, threads, told, outcome)


@pytest.mark.parametrize("which", [which for which in LIMITS if LIMITS[which] != (0,)])
def test_no_limit_ends_python(failures: Failures, which: int) -> None:
    for number, value in enumerate(LIMITS[which][-2:]):
        choice = CHOICES[number % 4]
        outcome = failures.python(1 + number % 2, which, value, TCC_WEIGHTS=choice)
        # Python itself may lack memory for its message
        assert outcome.code >= 0, (value, choice, outcome)


@pytest.mark.parametrize("stack", ["64", "256", "unlimited"])
def test_no_size_of_stacks_ends_a_c_host(failures: Failures, stack: str) -> None:
    for threads in (1, 2):
        assert failures.host(threads, stack=stack, TCC_WEIGHTS="share").good


def test_workers_have_stacks_of_a_megabyte_at_least(tmp_path: Path) -> None:
    program = build_stress(tmp_path, main="stacks.c")
    for size in ("64", "8192"):
        process = finished("sh", "-c", f'ulimit -s {size}; exec "$@"', "sh", program)
        assert int(process.stdout) >= max(1 << 20, int(size) << 10), process
