"""The plans for several ranks in an artifact."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tcc.cli.arrays import program_of
from tcc.ir.program import Collective
from tcc.ir.program.operands import walk_instructions


def artifact_plans(manifest: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """Yields a record for each variant of an artifact whose model is divided among ranks.

    It has the variant's number and target, the number of ranks, the bytes of weights that a rank
    maps, and the number of collectives of a run, also of each kind; those of a loop's body count
    once.
    """
    for number, variant in enumerate(manifest["variants"]):
        if variant.get("ranks", 1) > 1:
            body = program_of(path, number).body
            kinds = Counter(
                item.kind.name.lower()
                for item in walk_instructions(body)
                if isinstance(item, Collective)
            )
            yield {
                "variant": number,
                "target": variant["target"],
                "ranks": variant["ranks"],
                "weight_bytes_of_a_rank": variant["weights"]["bytes"],
                "collectives": kinds.total(),
                **{kind: kinds[kind] for kind in sorted(kinds)},
            }
