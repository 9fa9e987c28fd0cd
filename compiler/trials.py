"""Compiles the trials of a tuning sweep: a model with other kernels or other decisions above them.

The import is done once, and everything up to the placed graph once for each set of decisions above
schedules. A trial plans only the kernels whose choices change, and compiles only kernels that no
earlier trial had.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from tcc.backends.base import Backend
from tcc.batch import load_batched
from tcc.budgets import within
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.int8 import with_int8
from tcc.ir.graph import constant_bytes, walk_nodes
from tcc.options import Options
from tcc.passes.choose.choices_file import read_lines
from tcc.passes.choose.content import site
from tcc.passes.choose.ledger import Line, ListeningLedger
from tcc.passes.program.join_programs import join_programs
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.passes.tile.plan import KernelKey
from tcc.passes.traffic import unfused_bytes
from tcc.runtime.trials import Trial
from tcc.schedule.alternatives import number
from tcc.tune.block_space import BlockSpace
from tcc.tune.candidates import Space, TunedKernel
from tcc.tune.decisions import decisions_above
from tcc.tune.kernel_space import KernelSpace
from tcc.tune.lock import Home
from tcc.tune.words import words
from tcc.variants import (
    PlanPlace,
    check_options,
    common_facts,
    kernel_names,
    optimise,
    resolve_targets,
    variant_backends,
    variant_of,
)
from tcc.variants import lower as lower_variants

_TRACE = Trace()
_Chooser: TypeAlias = CoreChooser | BlockChooser


class TrialCompiler:
    """A model for one target whose kernels and decisions can be compiled with forced choices.

    `home` is the section of the lock for its target and cores. `kernels` are the kernels of the
    model, each with its analytic choice and the space of its candidates, and `decisions` are the
    decisions above schedules; what a line of --choices forces is not among them. `constants` is the
    size of the model's constants in bytes.
    """

    def __init__(self, model: Any, options: Options, resources: ExitStack | None = None) -> None:
        """Raises UserError if a compile would, and for targets that need several variants.

        Trials for GPUs share compiled kernels if `resources` is not None; it ends the processes
        that compile.
        """
        self._options, self._resources = options, resources
        self._lines = () if options.choices is None else read_lines(options.choices)
        targets = resolve_targets(options)
        check_options(options, targets)
        self._graph, _ = with_int8(load_batched(model, options)[0], options)
        self.constants = constant_bytes(self._graph)
        self._targets, self._unfused = targets, unfused_bytes(self._graph)
        self._facts = common_facts(targets, options, sum(1 for _ in walk_nodes(self._graph)))
        self._analytic = self._planned(())
        self.home = self._analytic.home
        forced = {line.site for line in self._lines}
        keys = self._analytic.keys
        self.kernels = tuple(self._kernel(digest) for digest in keys if digest not in forced)
        self.decisions = decisions_above(self._analytic.ledger, forced)

    def _kernel(self, digest: str) -> TunedKernel:
        plan = self._analytic
        key, analytic = plan.keys[digest], plan.ledger.exact[digest]()
        here = site(plan.planner.kind, *key)
        space: Space = (
            BlockSpace(plan.planner, key, analytic)
            if isinstance(plan.planner, BlockChooser)
            else KernelSpace(plan.planner, key, analytic)
        )
        return TunedKernel(digest, words(here.kind, here.content), analytic, space)

    def compile_trial(self, choices: Mapping[str, str], output: Path) -> Trial:
        """Compiles the model with forced choices into the artifact `output`.

        `choices` maps digests of sites to texts of alternatives; all other choices are the analytic
        ones. A choice that does not fit its site has no effect, and is in `Trial.refused`. Raises
        TccError if the trial cannot be compiled.
        """
        return within(self._options.budgets, lambda: self._compiled(choices, output))

    def _planned(self, lines: Sequence[Line], codes: Backend | None = None) -> "_Plan":
        """Plans the model with forced choices; the backend `codes` has the code of kernels."""
        ledger = ListeningLedger([*self._lines, *lines])
        backends = variant_backends(
            self._targets, self._options, self.constants, self._resources, ledger
        )
        (code,) = backends if len(backends) == 1 else (None,)
        planner = code and code.planner
        homes = [*ledger.entered]  # other targets have no section in a lock
        if code is None or len(homes) != 1 or not isinstance(planner, _Chooser):
            raise UserError(
                "tcc tune measures kernels of one processor or GPU",
                where=f"--target {self._options.target}",
                hint="pin the choices for other targets: tcc tune MODEL --pin",
            )
        code.share_code(codes)
        optimised = optimise(self._graph, backends, self._options, _TRACE)
        for optimised_graph in optimised[0]:
            code.check(optimised_graph)
        ((_, parts),) = lower_variants(backends, optimised, _TRACE)
        fitted = [code.fitted(part, kernel_names(part, PlanPlace()), _TRACE) for part in parts]
        return _Plan(ledger, code, planner, fitted, homes[0])

    def _plan_of(self, choices: Mapping[str, str]) -> "_Plan":
        """Returns the plan with the choices above schedules among `choices`."""
        kernels = self._analytic.keys
        above = [line for line in _lines_of(choices) if line.site not in kernels]
        return self._planned(above, self._analytic.code) if above else self._analytic

    def _compiled(self, choices: Mapping[str, str], output: Path) -> Trial:
        plan = self._plan_of(choices)
        parts = plan.lowered(self._lines, choices)
        variant = variant_of(plan.code, parts, self._unfused, self._options, _TRACE)
        plan.code.write([variant], self._facts, "trial", output, self._targets[0].triple)
        refused = plan.refused | plan.ledger.refusals()
        bounds = join_programs(parts[0], parts[1:]).table.bounds
        keys = [plan.planner.keys[bound] for bound in bounds]
        sites = [site(plan.planner.kind, *key) for key in keys]
        prices = [number(plan.planner.price(bound.group, bound.schedule)) for bound in bounds]
        steps = [n if isinstance(n, int) else None for n in variant.facts["steps"]]
        return Trial(
            output,
            dict(choices),
            refused,
            tuple(None if n is None else sites[n].digest for n in steps),
            sum(prices[n] for n in steps if n is not None),
            {
                s.digest: words(s.kind, s.content)
                for s in sites
                if s.digest not in self._analytic.keys
            },
            tuple(line.site for line in plan.ledger.unused() if line.site in choices),
        )


class _Plan:
    """The model planned with some decisions above schedules.

    `parts` are its lowered programs. `home` is the section of the lock, and `keys` has the kernels
    by the digest of their site. `refused` has the sites whose choice did not fit in the planning,
    with the reasons.
    """

    def __init__(
        self,
        ledger: ListeningLedger,
        code: Backend,
        planner: _Chooser,
        parts: Sequence[Lowered],
        home: Home,
    ) -> None:
        self.ledger, self.code, self.planner = ledger, code, planner
        self.parts, self.home = parts, home
        self.refused = ledger.refusals()
        keys = planner.keys.values()
        self.keys: dict[str, KernelKey] = {site(planner.kind, *key).digest: key for key in keys}
        self._changed: frozenset[str] = frozenset()

    def lowered(self, lines: Sequence[Line], choices: Mapping[str, str]) -> Sequence[Lowered]:
        """Returns the programs with the kernels that `lines` and `choices` force."""
        self.ledger.force([*lines, *_lines_of(choices)])
        changed = self.keys.keys() & self._changed.union(choices)
        self.planner.forget(self.keys[digest] for digest in changed)
        self._changed = frozenset(choices)
        # As in a compile, the first lowering chooses the layouts of constants for all programs.
        *special, general = [
            self.code.lowered_again(part, _TRACE) for part in (*self.parts[1:], self.parts[0])
        ]
        return general, *special


def _lines_of(choices: Mapping[str, str]) -> list[Line]:
    """Returns a line for each choice; as in a lock, a choice that does not fit has no effect."""
    return [Line(digest, text, digest, True) for digest, text in choices.items()]
