"""Plans, prices of strategies, and proofs of plans as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text

Record = Mapping[str, Any]


def plan_lines(facts: Record) -> Iterator[str | Table]:
    """Yields a table of the nodes of a plan, and lines about what ranks exchange and have.

    `facts` is what `tcc plan --json` prints: `nodes` has a record for each node, `collectives` one
    for each collective of a run, and the other keys have sums of ranks, bytes and seconds.
    """
    heads = ("node", "op", "us", "strategy")
    cells = [
        (row["node"], row["op"], f"{row['seconds'] * 1e6:.1f}", _text(row["strategy"]))
        for row in facts["nodes"]
    ]
    yield Table([heads, *cells])
    counts = Counter(item["kind"] for item in facts["collectives"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    sent = bytes_text(sum(item["bytes"] for item in facts["collectives"]))
    yield f"{facts['ranks']} ranks exchange: {kinds}; a rank hands over {sent} in a run"
    yield (
        f"weights: {bytes_text(facts['weight_bytes'])}, of which a rank has "
        f"{bytes_text(facts['rank_weight_bytes'])}"
    )
    yield f"memory: a rank needs {bytes_text(facts['rank_bytes'])} for weights and values"
    source = "prices of kernels" if facts["priced"] else "counts of operations and bytes"
    yield (
        f"predicted from {source}: {facts['seconds'] * 1e3:.2f} ms, "
        f"one rank {facts['one_rank_seconds'] * 1e3:.2f} ms"
    )
    if facts["lean"]:
        yield (
            f"tcc compile writes a plan of least memory too: a rank has "
            f"{bytes_text(facts['lean']['rank_weight_bytes'])} of weights, "
            f"{facts['lean']['seconds'] * 1e3:.2f} ms (tcc plan --objective memory)"
        )


def explanation_lines(rows: Sequence[Record]) -> Iterator[str | Table]:
    """Yields a table of the strategies of a node."""
    heads = ("strategy", "us of a run", "")
    cells = [
        (
            _text(r["strategy"]),
            "no memory" if r["seconds"] is None else f"{r['seconds'] * 1e6:.1f}",
            "chosen" if r["chosen"] else "",
        )
        for r in rows
    ]
    yield Table([heads, *cells])


def _text(strategy: str | list[str]) -> str:
    return strategy if isinstance(strategy, str) else " | ".join(strategy)


def proof_lines(proof: Any, hosts: Sequence[Any]) -> Iterator[str | Table]:
    """Yields a line for each part of a proof of a plan.

    `proof` is a `tcc.distributed.proof.Proof`; `hosts` are those whose memory it compared.
    """
    limits = (f"{host.name} has {bytes_text(host.memory_bytes)}" for host in hosts)
    rows = [
        ("divisions", f"{proof.divided} of {proof.nodes} nodes, in equal blocks"),
        ("shapes", f"{proof.arrays} arrays of each of {proof.ranks} ranks"),
        *(
            (kind, f"{count} in a run, to which a rank hands {bytes_text(size)}")
            for kind, (count, size) in proof.costs.items()
        ),
        ("costs", "as the plan states" if proof.stated else "the plan states none"),
        ("weights", f"{bytes_text(proof.weight_bytes)} a rank"),
        ("memory", ", ".join((f"at most {bytes_text(proof.peak_bytes)} a rank, at {proof.peak}",
                              *limits))),
        ("order", f"equal on all ranks of each of {len(proof.groups)} groups"),
    ]  # fmt: skip
    yield Table(rows, has_heads=False)
    yield "the plan is right"
