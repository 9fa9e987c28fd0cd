"""`tcc plan`."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.later_modules import cluster as clusters
from tcc.cli.later_modules import costs as models
from tcc.cli.later_modules import driver, facts, layers, plan_picture, planner, rank_plans
from tcc.cli.later_modules import plan as plans
from tcc.cli.progress import progress
from tcc.cli.show import print_json, say_all, write_text
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, constant_bytes
from tcc.options import Options
from tcc.runtime.plan_tables import explanation_lines, plan_lines, proof_lines
from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text

if TYPE_CHECKING:
    from tcc.passes.rank_prices import RankPrices

# The names of costs.COSTS, which a start of the command line does not import.
COSTS = "all", "zero-links", "zero-compute"


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    metavar="FILE",
    help="Writes the plan as JSON, or draws it if FILE ends in .svg.",
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
    type=click.Choice(["latency", "memory", "ranks"]),
    default="latency",
    show_default=True,
    help="latency: the least time on all ranks. memory: the least weights of a rank, and then the "
    "least time. ranks: the fewest ranks whose memory has room, and then the least time.",
)
@click.option(
    "--explain",
    metavar="NODE",
    help="Prices each strategy of a node: the time of a run with it, where the solver chooses all "
    "other strategies anew.",
)
@click.option(
    "--check",
    type=PATH,
    metavar="FILE",
    help="Proves the plan in FILE: shapes and divisions, exchanges and their stated bytes, the "
    "memory of each host, and the order in which ranks exchange.",
)
@compile_flags
@json_flag
def plan(
    model: Path,
    output: Path | None,
    costs: str,
    objective: str,
    explain: str | None,
    check: Path | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Divides the model file MODEL among ranks, and shows the plan: how ranks share each node, and
    what they exchange. tcc compile --plan takes the file, and a changed one. With --cluster and
    without --ranks, the plan is for all ranks of the hosts.

    \b
    Example:
      tcc plan model.onnx --ranks 4
      tcc plan model.onnx --ranks 4 -o plan.json
      tcc plan model.onnx --check plan.json
      tcc plan model.onnx --ranks 4 -o plan.svg
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
    flags = {
        "-o": output, "--explain": explain, "--plan": choices["plan"],
        "--objective": objective != "latency", "--costs": costs != COSTS[0],
    }  # fmt: skip
    for flag, value in flags.items():
        if check is not None and value:
            hint = "leave one of them out"
            raise UserError("--check only proves a plan", where=f"{flag} with --check", hint=hint)
    checked = None if check is None else plans.read_plan(check, "--check")
    options = chosen_options(choices)
    job = _job(options, 1 if checked is None else checked.ranks, costs)
    with progress(f"planning {model.name}") as stage:
        stage("import")
        graph = driver.divided_graph(model, job.options)
        stage("choosing strategies")
        if objective == "ranks":
            solver, states = planner.partition_solver(), options.state
            job = replace(job, cluster=facts.fewest_ranks(graph, job.cluster, solver, states))
        if checked is not None:
            record, lines = _check(graph, checked, job)
        elif job.ranks == 1:
            record, lines = {"ranks": 1}, ["one rank has room for the model: it needs no plan"]
        elif explain is not None:
            record, lines = _explain(graph, explain, job)
        else:
            prices = rank_plans.rank_prices(job.options) if costs == COSTS[0] else None
            priced = prices and prices(constant_bytes(graph))
            record, lines = _plan(graph, output, job, priced, objective == "memory")
    if as_json:
        print_json(record)
    else:
        say_all(lines)


# The record that a command prints with --json, and the lines that it prints without.
_Printed: TypeAlias = tuple[Any, Iterable[str | Table]]


@frozen
class _Job:
    """The options of a command, and the part of the cluster that it plans for."""

    options: Options
    cluster: "models.Cluster"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.cluster.ranks

    def fixed(self, graph: Graph) -> dict[Any, Any]:
        """Returns the strategies that the files of --plan fix."""
        fixed: dict[Any, Any] = {}
        for file in self.options.plan:
            fixed |= plans.fixed_strategies(graph, plans.read_plan(file), self.cluster.mesh)
        return fixed


def _job(options: Options, ranks: int, costs: str) -> _Job:
    """Returns the job for the cluster file of --cluster, or for one host.

    Without --ranks the number of ranks is `ranks`, or the cluster's if that is 1.  Raises UserError
    if the ranks are not one number above 1, or more than the cluster has.
    """
    if options.ranks == (1,):
        path = options.cluster
        every = ranks if path is None or ranks > 1 else clusters.read_cluster(path).ranks
        options = replace(options, ranks=(every,))
    count = options.ranks[0]
    if len(options.ranks) != 1 or count < 2:
        raise UserError(
            "a plan is for one number of ranks, at least 2",
            where="--ranks " + ",".join(map(str, options.ranks)),
            hint="give one, as in --ranks 2",
        )
    part = clusters.cluster_of(options.cluster, count)
    return _Job(options, models.with_costs(part, costs))


def _plan(
    graph: Graph,
    output: Path | None,
    job: _Job,
    prices: "RankPrices | None",
    lean: bool,
) -> _Printed:
    """Returns the best plan, or the plan of least memory if `lean`, and writes or draws it."""
    solver, fixed = planner.partition_solver(), job.fixed(graph)
    result = facts.planned(graph, job.cluster, solver, fixed, job.options.state, prices, lean)
    if output is not None:
        if output.suffix == ".svg":
            rows = [*map(asdict, layers.plan_rows(result.division))]
            name = result.division.graph.name
            text = plan_picture.plan_svg(name, result.facts, result.collectives, rows, bytes_text)
        else:
            text = plans.plan_text(graph, result.plan)
        write_text(output, "the plan", text)
    record = {**result.facts, "nodes": result.rows, "collectives": result.collectives}
    return record, plan_lines(record)


def _explain(graph: Graph, node: str, job: _Job) -> _Printed:
    """Returns the price of each strategy of a node."""
    solver, fixed = planner.partition_solver(), job.fixed(graph)
    rows = facts.explained(graph, job.cluster, solver, fixed, node, job.options.state)
    return rows, explanation_lines(rows)


def _check(graph: Graph, checked: "plans.Plan", job: _Job) -> _Printed:
    """Returns the facts that are proved of a plan."""
    solver, cluster, states = planner.partition_solver(), job.cluster, job.options.state
    proof = facts.proved(graph, checked, cluster, solver, states)
    return asdict(proof), proof_lines(proof, cluster.hosts)
