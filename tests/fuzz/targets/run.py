"""`python -m tests.fuzz.targets.run NAME FOLDER [libFuzzer's flags]`: fuzzes a Python target.

New inputs go to FOLDER, which begins with the target's seeds and the corpus.  Needs `atheris`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import atheris

CORPUS = Path(__file__).parents[1] / "corpus"
TRACED = ("tcc.frontends", "tcc.artifact", "tcc.ops", "tcc.ir", "tcc.runtime")


def main(name: str, folder: Path, flags: list[str]) -> None:
    with atheris.instrument_imports(include=TRACED):
        target = import_module(f"tests.fuzz.targets.{name}")
    folder.mkdir(parents=True, exist_ok=True)
    for seed, data in target.seeds(lambda case: folder.with_name("cases") / case):
        (folder / seed).write_bytes(data)
    for path in sorted((CORPUS / name).glob("*")):
        (folder / path.name).write_bytes(path.read_bytes())
    extra = {}
    if hasattr(target, "mutate"):
        extra["custom_mutator"] = lambda data, size, seed: target.mutate(
            data, seed, lambda given: atheris.Mutate(given, size)
        )
    atheris.Setup([sys.argv[0], str(folder), *flags], target.check, **extra)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
