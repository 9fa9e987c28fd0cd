"""Names that do not describe their values: participles, pronouns and adjectives.

python -m tests.arch.names [ROOM]     # the share of each room, and of its files in one room
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("compiler", "passes", "backends", "runtime", "scripts")
# CONTRIBUTING.md requires that a variable is a noun that says what it holds.
NO_NOUNS = frozenset(
    """
    added alike alone apart around asked beside both chosen cut done each far found given held
    joined judge kept known least left made most moved near ones others own product reach read rest
    run same seen shown sides settled stored taken thin total tried turned unit used walk wanted
    whole written
    """.split()
)


class Share(NamedTuple):
    """Counts of the bound names that are not nouns, and of all bound names."""

    poor: int
    bound: int

    @property
    def percent(self) -> float:
        return 100 * self.poor / max(1, self.bound)


def room_shares(root: Path) -> dict[str, Share]:
    """Returns the share of each room: a folder two levels deep, or the files of a top folder."""
    poor: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    for path in sources(root):
        room = "/".join(path.relative_to(root).parent.parts[:2])
        names = [*bound_names(path.read_text(encoding="utf-8"))]
        bound[room] += len(names)
        poor[room] += sum(name in NO_NOUNS for name in names)
    return {room: Share(poor[room], bound[room]) for room in sorted(bound)}


def sources(root: Path) -> Iterator[Path]:
    """Yields the Python files of the source folders, including scripts without a suffix."""
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix == ".py" or (path.suffix == "" and path.is_file() and _is_script(path)):
                yield path


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline().rstrip().endswith(b"python3")


def bound_names(text: str) -> Iterator[str]:
    """Yields each name that a module binds to a variable, parameter or field, once per binding."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                if name not in ("self", "cls", "_"):
                    yield name


def main() -> None:
    """Prints the shares."""
    shares = room_shares(ROOT)
    if len(sys.argv) > 1:
        names: Counter[str] = Counter()
        for path in sources(ROOT):
            if path.relative_to(ROOT).as_posix().startswith(f"{sys.argv[1]}/"):
                poor = [n for n in bound_names(path.read_text(encoding="utf-8")) if n in NO_NOUNS]
                names.update(poor)
                if poor:
                    print(f"{len(poor):5} {path.relative_to(ROOT)}")
        print(", ".join(f"{name} {count}" for name, count in names.most_common()))
        return
    for room, share in shares.items():
        print(f"{room:24}{share.poor:6} of {share.bound:6}{share.percent:7.1f} %")
    overall = Share(*map(sum, zip(*shares.values(), strict=True)))
    print(f"{'together':24}{overall.poor:6} of {overall.bound:6}{overall.percent:7.1f} %")


if __name__ == "__main__":
    main()
