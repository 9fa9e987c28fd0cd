"""`tcc plan`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.show import aligned, bytes_text, print_json, progress, say, say_fitted
from tcc.errors import UserError, file_errors
from tcc.later import later
from tcc.options import Options

if TYPE_CHECKING:
    from tcc import driver
    from tcc.backends.artifact import planner
    from tcc.distributed import cluster as clusters
    from tcc.distributed import costs as models
    from tcc.distributed import facts
    from tcc.distributed import plan as plans
else:
    driver, planner = later("tcc.driver"), later("tcc.backends.artifact.planner")
    clusters, models = later("tcc.distributed.cluster"), later("tcc.distributed.costs")
    facts, plans = later("tcc.distributed.facts"), later("tcc.distributed.plan")

# The names of costs.COSTS, which a start of the command line does not import.
COSTS = "all", "zero-links", "zero-compute"


@click.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=OUTPUT, metavar="FILE", help="Writes the plan as JSON.")
@click.option(
    "--cluster",
    type=PATH,
    help="Hosts and links as JSON, from which the plan's times and the limit of memory come; the "
    "default is one host. Without --ranks the plan is for all ranks of the hosts.",
)
@click.option(
    "--costs",
    type=click.Choice(COSTS),
    default=COSTS[0],
    show_default=True,
    help="Plans as if exchanges took no time (zero-links: everything is divided), or work "
    "(zero-compute: only what memory forces is divided).",
)
@click.option(
    "--objective",
    type=click.Choice(["latency", "ranks"]),
    default="latency",
    show_default=True,
    help="latency: the least time on all ranks. ranks: the fewest ranks whose memory has room, and "
    "then the least time.",
)
@click.option(
    "--explain",
    metavar="NODE",
    help="Prices each strategy of a node: the time of a run with it, where the solver chooses all "
    "other strategies anew.",
)
@compile_flags
@json_flag
def plan(
    model: Path,
    output: Path | None,
    cluster: Path | None,
    costs: str,
    objective: str,
    explain: str | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Divides the model file MODEL among ranks, and shows the plan: how ranks share each node, and
    what they exchange. tcc compile --plan takes the file, and a changed one.

    \b
    Example:
      tcc plan model.onnx --ranks 4
      tcc plan model.onnx --ranks 4 -o plan.json
      tcc compile model.onnx --ranks 1,4 --plan plan.json
      tcc plan model.onnx --ranks 4 --explain logits
      tcc plan model.onnx --cluster cluster.json

    Nodes are named by their first result. `split(1)` is a block along axis 1, `partial(sum)` an
    array of the full shape that ranks have to add, `whole` what every rank has. The plan depends on
    the model and the options alone.

    \b
    A cluster file, in which memory_bytes and flops are those of each rank:
      {"version": 1,
       "hosts": [{"name": "a", "ranks": 2, "memory_bytes": 8000000000,
                  "flops": 1e11}],
       "links": [{"between": ["a", "a"], "kind": "any", "bytes": 0,
                  "latency_s": 5e-6, "bytes_per_s": 1e10}]}
    """
    options = chosen_options(choices)
    described = None if cluster is None else clusters.read_cluster(cluster)
    if described is not None and options.ranks == (1,):
        options = replace(options, ranks=(described.ranks,))
    ranks = _ranks(options)
    if described is not None and ranks > described.ranks:
        raise UserError(
            "the cluster has too few ranks",
            where=f"--cluster {cluster}",
            why=f"its hosts have {described.ranks} together, and --ranks is {ranks}",
            hint="give fewer ranks, or more hosts",
        )
    if described is None:
        described = models.one_host(ranks)
    part = models.with_costs(clusters.part_of(described, ranks), costs)
    with progress(f"planning {model.name}") as stage:
        stage("import")
        graph = driver.divided_graph(model, options)
        stage("solve")
        if objective == "ranks":
            part = facts.fewest_ranks(graph, part, planner.partition_solver(), options.state)
            if part.ranks == 1 and as_json:
                print_json({"ranks": 1})
            if part.ranks == 1:
                say("one rank has room for the model: it needs no plan", err=as_json)
                return
        fixed: dict[Any, Any] = {}
        for file in options.plan:
            fixed |= plans.fixed_strategies(graph, plans.read_plan(file), part.mesh)
        if explain is not None:
            rows = facts.explained(
                graph, part, planner.partition_solver(), fixed, explain, options.state
            )
            _explain(rows, as_json)
            return
        result = facts.planned(graph, part, planner.partition_solver(), fixed, options.state)
    text = plans.plan_text(graph, result.plan)
    if output is not None:
        _write(output, text)
    if as_json:
        print_json({**result.facts, "nodes": result.rows, "collectives": result.collectives})
        return
    say_fitted(_table(result.rows))
    for line in _totals(result.facts, result.collectives):
        say(line)


def _ranks(options: Options) -> int:
    if len(options.ranks) == 1 and options.ranks[0] > 1:
        return options.ranks[0]
    raise UserError(
        "a plan is for one number of ranks, at least 2",
        where="--ranks " + ",".join(map(str, options.ranks)),
        hint="give one, as in --ranks 2",
    )


def _write(output: Path, text: str) -> None:
    """Writes a file completely or not at all."""
    with (
        file_errors("the plan cannot be written", output),
        click.open_file(str(output), "w", encoding="utf-8", atomic=True) as file,
    ):
        file.write(text)


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("node", "op", "us", "strategy")
    cells = [(r["node"], r["op"], f"{r['seconds'] * 1e6:.1f}", _text(r["strategy"]))
             for r in rows]  # fmt: skip
    yield from aligned([heads, *cells])


def _text(strategy: str | list[str]) -> str:
    return strategy if isinstance(strategy, str) else plans.joined(tuple(strategy))


def _totals(totals: Mapping[str, Any], collectives: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counts = Counter(item["kind"] for item in collectives)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    sent = bytes_text(sum(item["bytes"] for item in collectives))
    yield f"{totals['ranks']} ranks exchange: {kinds}; a rank hands over {sent} in a run"
    yield (
        f"weights: {bytes_text(totals['weight_bytes'])}, of which a rank has "
        f"{bytes_text(totals['rank_weight_bytes'])}"
    )
    yield (
        f"predicted from counts of operations and bytes: {totals['seconds'] * 1e3:.2f} ms, "
        f"one rank {totals['one_rank_seconds'] * 1e3:.2f} ms"
    )


def _explain(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    heads = ("strategy", "us of a run", "")
    cells = [
        (
            _text(r["strategy"]),
            "no memory" if r["seconds"] is None else f"{r['seconds'] * 1e6:.1f}",
            "chosen" if r["chosen"] else "",
        )
        for r in rows
    ]
    say_fitted(aligned([heads, *cells]))
