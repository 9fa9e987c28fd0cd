"""The end of a compile as a few lines: the files, the code, the memory, and the next step."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tcc.runtime.units import bytes_text

# The names in a line that lists layers.
_NAMED = 3


def summary_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (label, text) for each line about a compile.

    `record` is the record that `tcc compile --json` prints. Lines about lock entries, conversions
    and weights in wider types are there only where they apply.
    """
    yield "wrote", _listed([*map(_file_text, record["files"])])
    for variant in record["variants"]:
        yield "target", code_text(record, variant)
        yield "memory", memory_text(record, variant)
        yield from narrow_rows(record["narrow"], variant["weight_types"], variant["wide"])
    if record["tuned"] is not None:
        yield "lock", lock_text(record["tuned"])
    yield "next", record["next"]


def code_text(record: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    """Returns the target, precision, ops and kernels of a variant."""
    count, kernels = record["specialisations"], _counted(variant["kernels"], "kernel")
    special = f", {_counted(count, 'specialisation')}" if count else ""
    ops = _counted(record["ops"], "op")
    return f"{variant['target']}, {record['precision']}, {ops} in {kernels}{special}"


def memory_text(record: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    """Returns the sizes of a variant's arena and weights, and the libraries that it needs.

    The weights are compared with those of the model if the record has their ratio.
    """
    arena, growth = variant["arena"], variant["growth"]
    arena_text = "depends on the inputs" if arena is None else bytes_text(arena)
    ratio = "" if growth is None else f" ({growth:.2f}x the model's)"
    needs = " and ".join(filter(None, (variant["needs"], record["needs"])))
    return f"arena {arena_text}, weights {bytes_text(variant['weights'])}{ratio}, needs {needs}"


def precision_text(manifest: Mapping[str, Any]) -> str:
    """Returns an artifact's precision as text, as in `f32 with int4 weights and int8 activations`;
    the last part says that matmuls multiply bytes with integer weights."""
    kinds = (("quantized", "weights"), ("activations", "activations"))
    parts = [f"{manifest[key]} {what}" for key, what in kinds if manifest.get(key)]
    return " with ".join(
        [manifest.get("precision", "f32"), *([" and ".join(parts)] if parts else [])]
    )


def narrow_rows(
    narrow: str, types: Mapping[str, int], wide: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields (label, text) for the weights that are stored in fewer bits, and for the others.

    `narrow` is the type that the compile asked for, or "" if weights keep their types. `types`
    counts the weights of matmuls and convolutions by type. `wide` names those of another type than
    `narrow`.
    """
    if not narrow:
        return
    population = f"of {sum(types.values())} matmul and convolution weights as {narrow}"
    count = f"{types.get(narrow, 0)} {population}"
    yield "stored", count if types else "no matmul or convolution weights"
    if wide:
        counts = (f"{count} as {name}" for name, count in types.items() if name != narrow)
        yield "wide", f"{_listed(counts)}: {_shortened(wide)}"


def next_step(path: PurePath, targets: Sequence[str], package: str = "") -> str:
    """Returns the command that a user may want next.

    `targets` are the texts of the variants' targets. `package` is the name of a package, whose
    folder holds the library at `path`.
    """
    if package:
        return f"find_package({package}) in CMake, with CMAKE_PREFIX_PATH={path.parents[1]}"
    name = shlex.quote(str(path))
    if path.suffix == ".c":
        return f"cc -std=c11 -O2 -c {name}"
    here = f"cpu:{platform.machine().replace('_', '-')}"
    own_targets = [target for target in targets if target.partition(" ")[0] == here]
    if not own_targets:
        return f"tcc inspect {name}"
    ranks = [match[1] for target in own_targets if (match := re.search(r" on (\d+) ranks", target))]
    return (
        f"tcc run {name} --nproc {ranks[0]}"
        if len(ranks) == len(own_targets)
        else f"tcc run {name}"
    )


def _file_text(file: Mapping[str, Any]) -> str:
    """Returns the path of a file, with its size unless it is a header."""
    path, size = file["path"], bytes_text(file["bytes"])
    return path if path.endswith(".h") else f"{path} ({size})"


def lock_text(tuned: Mapping[str, Any]) -> str:
    """Returns the counts of a lock's entries; those that are 0 are left out, all but the first."""
    others = " or are removed by other entries" if tuned["has_changes"] else ""
    named = (
        ("unfit", "do not fit"),
        ("elsewhere", "are for other targets or cores"),
        ("unrelated", f"belong to other models{others}"),
    )
    count = sum(tuned[name] for name in ("applied", *(name for name, _ in named)))
    other_counts = (f"{tuned[name]} {words}" for name, words in named if tuned[name])
    return ", ".join((f"{tuned['applied']} of {count} entries apply", *other_counts))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _listed(texts: Iterator[str] | Sequence[str]) -> str:
    """Returns the texts with commas, and "and" before the last."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _shortened(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return _listed([*names[:_NAMED], *more])
