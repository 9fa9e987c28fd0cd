"""Fuzzes a Python target: `python -m tests.lib.fuzz.targets.run NAME FOLDER... [FLAGS]`.

The flags are those of libFuzzer. The target's seeds go to the last folder, new inputs to the first.
Needs `atheris`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import atheris

TRACED = ("tcc.frontends", "tcc.artifact", "tcc.ops", "tcc.ir", "tcc.runtime")


def main(name: str, arguments: list[str]) -> None:
    with atheris.instrument_imports(include=TRACED):
        target = import_module(f"tests.lib.fuzz.targets.{name}")
    folder = Path([argument for argument in arguments if not argument.startswith("-")][-1])
    for seed, data in target.seeds(lambda case: folder.with_name("cases") / case):
        (folder / seed).write_bytes(data)
    extra = {}
    if hasattr(target, "mutate"):
        extra["custom_mutator"] = lambda data, size, seed: target.mutate(
            data, seed, lambda argument: atheris.Mutate(argument, size)
        )[:size]
    atheris.Setup([sys.argv[0], *arguments], target.check, **extra)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
