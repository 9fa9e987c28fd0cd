"""`tcc plan`."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.plan_tables import explanation_lines, plan_lines, proof_lines
from tcc.cli.show import bytes_text, print_json, progress, say_fitted
from tcc.errors import UserError, file_errors
from tcc.frozen import frozen
from tcc.ir.graph import Graph
from tcc.later import later
from tcc.options import Options

if TYPE_CHECKING:
    from tcc import driver
    from tcc.backends.artifact import planner
    from tcc.distributed import cluster as clusters
    from tcc.distributed import costs, facts, picture
    from tcc.distributed import plan as plans
else:
    driver, planner = later("tcc.driver"), later("tcc.backends.artifact.planner")
    clusters, costs = later("tcc.distributed.cluster"), later("tcc.distributed.costs")
    facts, plans = later("tcc.distributed.facts"), later("tcc.distributed.plan")
    picture = later("tcc.distributed.picture")


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
    "--cluster",
    type=PATH,
    help="Hosts and links as JSON, from which the plan's times and the limit of memory come; the "
    "default is one host. Without --ranks the plan is for all ranks of the hosts.",
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
    cluster: Path | None,
    explain: str | None,
    check: Path | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Divides the model file MODEL among ranks, and shows the plan: how ranks share each node, and
    what they exchange. tcc compile --plan takes the file, and a changed one.

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
    for flag, value in (("-o", output), ("--explain", explain), ("--plan", choices["plan"])):
        if check is not None and value:
            hint = "leave one of them out"
            raise UserError("--check only proves a plan", where=f"{flag} with --check", hint=hint)
    checked = None if check is None else plans.read_plan(check, "--check")
    job = _job(cluster, chosen_options(choices), 1 if checked is None else checked.ranks)
    with progress(f"planning {model.name}") as stage:
        stage("import")
        graph = driver.divided_graph(model, job.options)
        stage("solve")
        if checked is not None:
            _check(graph, checked, job, as_json)
        elif explain is not None:
            _explain(graph, explain, job, as_json)
        else:
            _plan(graph, output, job, as_json)


@frozen
class _Job:
    """The options, with the one number of ranks `ranks`, and the cluster of a command."""

    options: Options
    ranks: int
    cluster: "clusters.Cluster"

    def fixed(self, graph: Graph) -> dict[Any, Any]:
        """Returns the strategies that the files of --plan fix."""
        fixed: dict[Any, Any] = {}
        for file in self.options.plan:
            fixed |= plans.fixed_strategies(graph, plans.read_plan(file), self.ranks)
        return fixed


def _job(path: Path | None, options: Options, ranks: int) -> _Job:
    """Returns the job for a cluster file, or None for one host.

    Without --ranks the number of ranks is `ranks`, or the cluster's if that is 1.  Raises UserError
    if the ranks are not one number above 1, or more than the cluster has.
    """
    one_host = clusters.Cluster(ranks, costs.HOST)
    cluster = one_host if path is None else clusters.read_cluster(path)
    if options.ranks == (1,):
        options = replace(options, ranks=(cluster.ranks if ranks == 1 else ranks,))
    job = _Job(options, options.ranks[0], cluster)
    if len(options.ranks) != 1 or job.ranks < 2:
        raise UserError(
            "a plan is for one number of ranks, at least 2",
            where="--ranks " + ",".join(map(str, options.ranks)),
            hint="give one, as in --ranks 2",
        )
    if path is not None and job.ranks > cluster.ranks:
        raise UserError(
            "the cluster has too few ranks",
            where=f"--cluster {path}",
            why=f"its hosts have {cluster.ranks} together, and the plan is for {job.ranks}",
            hint="give fewer ranks, or more hosts",
        )
    return job


def _plan(graph: Graph, output: Path | None, job: _Job, as_json: bool) -> None:
    """Prints the best plan, and writes or draws it."""
    solver, rates = planner.partition_solver(), job.cluster.rates
    fixed, states = job.fixed(graph), job.options.state
    result = facts.planned(graph, job.ranks, solver, fixed, rates, states)
    if output is not None:
        if output.suffix == ".svg":
            text = picture.plan_svg(result, bytes_text)
        else:
            text = plans.plan_text(graph, result.plan)
        _write(output, text)
    if as_json:
        print_json({**result.facts, "nodes": result.rows, "collectives": result.collectives})
        return
    say_fitted(plan_lines(result))


def _explain(graph: Graph, node: str, job: _Job, as_json: bool) -> None:
    """Prints the price of each strategy of a node."""
    solver, rates = planner.partition_solver(), job.cluster.rates
    fixed, states = job.fixed(graph), job.options.state
    rows = facts.explained(graph, job.ranks, solver, fixed, node, rates, states)
    if as_json:
        print_json(rows)
        return
    say_fitted(explanation_lines(rows))


def _check(graph: Graph, checked: "plans.Plan", job: _Job, as_json: bool) -> None:
    """Prints the facts that are proved of a plan."""
    solver, cluster, states = planner.partition_solver(), job.cluster, job.options.state
    proof = facts.proved(graph, checked, job.ranks, solver, cluster.rates, states, cluster.hosts)
    if as_json:
        print_json(asdict(proof))
        return
    say_fitted(proof_lines(proof, cluster.hosts))


def _write(output: Path, text: str) -> None:
    """Writes a file completely or not at all."""
    with (
        file_errors("the plan cannot be written", output),
        click.open_file(str(output), "w", encoding="utf-8", atomic=True) as file,
    ):
        file.write(text)
