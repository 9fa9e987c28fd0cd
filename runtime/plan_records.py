"""The plans for several ranks in an artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tcc.runtime.host_program import HostProgram, walk
from tcc.runtime.instructions import COLLECTIVES


def plan_records(
    manifest: Mapping[str, Any], program: Callable[[int], HostProgram]
) -> Iterator[dict[str, Any]]:
    """Yields a record for each variant of an artifact whose model is divided among ranks.

    `program` returns the program of a variant. A record has the variant's number and target, the
    number of ranks, the bytes of weights that a rank maps, and the number of collectives of a run,
    also of each kind; those of a loop's body count once.
    """
    for number, variant in enumerate(manifest["variants"]):
        if variant.get("ranks", 1) > 1:
            kinds = Counter(
                COLLECTIVES[instruction.fields["kind"]]
                for instruction in walk(program(number).body)
                if instruction.name == "collective"
            )
            yield {
                "variant": number,
                "target": variant["target"],
                "ranks": variant["ranks"],
                "weight_bytes_of_a_rank": variant["weights"]["bytes"],
                "collectives": kinds.total(),
                **{kind: kinds[kind] for kind in sorted(kinds)},
            }
