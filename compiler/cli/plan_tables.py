"""Plans, prices of strategies, and proofs of plans as tables."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcc.cli.later_modules import plan as plans
from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text

if TYPE_CHECKING:
    from tcc.distributed.costs import Host
    from tcc.distributed.facts import PlanFacts
    from tcc.distributed.proof import Proof


def plan_lines(result: "PlanFacts") -> Iterator[str | Table]:
    """Yields a table of the nodes of a plan, and lines about what ranks exchange and have."""
    heads = ("node", "op", "us", "strategy")
    cells = [
        (row["node"], row["op"], f"{row['seconds'] * 1e6:.1f}", _text(row["strategy"]))
        for row in result.rows
    ]
    yield Table([heads, *cells])
    counts = Counter(item["kind"] for item in result.collectives)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    sent = bytes_text(sum(item["bytes"] for item in result.collectives))
    sums = result.facts
    yield f"{sums['ranks']} ranks exchange: {kinds}; a rank hands over {sent} in a run"
    yield (
        f"weights: {bytes_text(sums['weight_bytes'])}, of which a rank has "
        f"{bytes_text(sums['rank_weight_bytes'])}"
    )
    yield f"memory: a rank needs {bytes_text(sums['rank_bytes'])} for weights and values"
    source = "prices of kernels" if sums["priced"] else "counts of operations and bytes"
    yield (
        f"predicted from {source}: {sums['seconds'] * 1e3:.2f} ms, "
        f"one rank {sums['one_rank_seconds'] * 1e3:.2f} ms"
    )
    if sums["lean"]:
        yield (
            f"tcc compile writes a plan of least memory too: a rank has "
            f"{bytes_text(sums['lean']['rank_weight_bytes'])} of weights, "
            f"{sums['lean']['seconds'] * 1e3:.2f} ms (tcc plan --objective memory)"
        )


def explanation_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
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
    return strategy if isinstance(strategy, str) else plans.joined(tuple(strategy))


def proof_lines(proof: "Proof", hosts: "Sequence[Host]") -> Iterator[str | Table]:
    """Yields a line for each part of a proof; `hosts` are those whose memory it compared."""
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
