"""The partition plans of a compile: the steps that divide a graph among ranks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.cluster import cluster_of
from tcc.distributed.plan import Plan, read_plan
from tcc.distributed.planner import PlanStep, PricesFor, plan_steps
from tcc.errors import UserError
from tcc.options import Options
from tcc.passes.pipeline import Sharder
from tcc.passes.rank_prices import RankPrices
from tcc.schedule.alternatives import Ledger
from tcc.variants import Sharders, resolve_targets, variant_backends

_MOST_PLANS = 64  # for one number of ranks; runtime/src/runtime.h has the same number


def plan_sharders(options: Options, ledger: Ledger) -> Sharders:
    """Returns the function from a number of ranks to the steps that divide a graph among them.

    There is a step for each plan of --plan, in their order; without one, the planner chooses all
    strategies.  `ledger` makes the steps' decisions.  Raises UserError for a plan that cannot be
    read, that is given twice, or whose number of ranks --ranks does not name, and for a cluster
    without --ranks.
    """
    if options.cluster is not None and options.ranks == (1,):
        raise UserError(
            "no plan uses the cluster",
            where=f"--cluster {options.cluster}",
            why="the compile is for one rank",
            hint="give the numbers of ranks, as in --ranks 1,2",
        )
    plans: dict[int, list[Plan]] = {}
    for plan in map(read_plan, options.plan):
        if plan.ranks not in options.ranks:
            raise UserError(
                "no rank uses the plan",
                where=plan.place,
                why=f"it is for {plan.ranks} ranks",
                hint=f"compile with --ranks {plan.ranks}",
            )
        siblings = plans.setdefault(plan.ranks, [])
        for sibling in siblings:
            if replace(sibling, place=plan.place) == plan:
                raise UserError(
                    "a plan is given twice",
                    where=plan.place,
                    why=f"{sibling.place} divides the model in the same way",
                    hint="give one of them",
                )
        if len(siblings) == _MOST_PLANS:
            raise UserError(
                "too many plans are for one number of ranks",
                where=plan.place,
                why=f"{_MOST_PLANS} other plans are for {plan.ranks} ranks",
                hint="leave some out",
            )
        siblings.append(plan)

    solver, prices = partition_solver, rank_prices(options)

    def divisions(ranks: int) -> Iterator[Sharder]:
        cluster = cluster_of(options.cluster, ranks)
        if ranks not in plans:
            return plan_steps(cluster, solver(), prices, options.state, ledger)
        return (
            PlanStep(cluster, solver(), prices, plan, options.state, ledger)
            for plan in plans[ranks]
        )

    return divisions


def rank_prices(options: Options) -> PricesFor:
    """Returns the function from a model's bytes of constants to the prices of its kernels.

    The first target that the options name prices them.
    """

    @cache
    def prices(constants: int) -> RankPrices | None:
        code, *_ = variant_backends(resolve_targets(options), options, constants)
        if code.settings.merges is None:
            return None
        settings = replace(code.settings, states=options.state)
        return RankPrices(code.planner, settings, options.level, code.lower)

    return prices
