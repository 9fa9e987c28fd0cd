"""A C compiler that counts branches of the runtime; `scripts/branches` makes the tests use it as
`cc`.

Each file of runtime/src is compiled once for each set of macro definitions, without optimisation
and sanitizers. The object goes to COVERED_OBJECTS, where gcov finds its notes and counts. The
compiler COVERED_CC compiles everything else unchanged: other sources, changed copies of the
runtime, and tests for data races, which need code that does not count.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "runtime" / "src"
# tcc links an artifact with stand-ins for these libraries. The stand-ins lack functions that
# gcov's counters call, so the linker gets the real libraries instead.
STAND_INS = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
PLAIN_FLAGS = ("-fsanitize=thread", "-E", "-nostdlib", "--version")
EXIT_HOOK = """
extern void __gcov_dump(void);
extern void __real__exit(int code);
void __wrap__exit(int code) {
    __gcov_dump();
    __real__exit(code);
}
"""


def is_covered(word: str) -> bool:
    return word.endswith(".c") and Path(word).resolve().is_relative_to(SOURCES)


def definitions(words: list[str]) -> list[str]:
    """Returns the flags that change a file's meaning: macros, include folders, the standard.

    Flags for optimisation and sanitizers are left out.
    """
    names, flags = iter(words), []
    for word in names:
        if word == "-include":
            flags += [word, str(Path(next(names)).resolve())]
        elif word.startswith(("-D", "-std", "-w", "-fvisibility")):
            flags.append(word)
        elif word.startswith("-I"):
            flags.append(f"-I{Path(word[2:]).resolve()}")
    return flags


def compiled(compiler: str, source: str, words: list[str], folder: Path) -> str:
    """Returns the object of a file of the runtime; compiles it if no earlier call did."""
    path, flags = Path(source).resolve(), definitions(words)
    key = hashlib.sha256("\0".join((str(path), *flags)).encode()).hexdigest()[:12]
    object_file = folder / f"{path.parent.name}-{path.stem}-{key}.o"
    with (folder / f"{object_file.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not object_file.exists():
            command = (compiler, *flags, "-O0", "-fPIC", "--coverage", "-fprofile-abs-path")
            subprocess.run((*command, "-c", str(path), "-o", str(object_file)), check=True)
    return str(object_file)


def main(words: list[str]) -> int:
    """Returns the compiler's exit code."""
    compiler, folder = os.environ["COVERED_CC"], Path(os.environ["COVERED_OBJECTS"])
    links = "-c" not in words
    if any(word in PLAIN_FLAGS for word in words) or not (links or any(map(is_covered, words))):
        return subprocess.run((compiler, *words), check=False).returncode
    objects = {word: compiled(compiler, word, words, folder) for word in words if is_covered(word)}
    if not links:
        (object_file,) = objects.values()
        output = words[words.index("-o") + 1] if "-o" in words else ""
        out = Path(output or f"{Path(next(iter(objects))).stem}.o")
        shutil.copyfile(object_file, out)
        return 0
    operands = [objects.get(word, word) for word in words if Path(word).name not in STAND_INS]
    ending = folder / "ending.o"  # writes the counts when a child process ends by _exit
    if not ending.exists():
        temporary = folder / f"ending.{os.getpid()}.o"
        command = (compiler, "-xc", "-fPIC", "-c", "-", "-o", str(temporary))
        subprocess.run(command, input=EXIT_HOOK, text=True, check=True)
        temporary.rename(ending)
    ends = () if "-shared" in words else (str(ending), "-Wl,--wrap=_exit")
    command = (compiler, *operands, *ends, "--coverage", "-lm", "-lpthread", "-ldl")
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
