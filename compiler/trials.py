"""Compiles the trials of a tuning sweep: a model in which many kernels have other schedules.

Everything up to the placed graph is done once. A trial plans only the kernels whose choices change,
and compiles only kernels that no earlier trial had.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcc.budgets import within
from tcc.debug import Trace
from tcc.driver import common_facts
from tcc.errors import UserError
from tcc.frontends import load_called
from tcc.ir.graph import constant_bytes, walk_nodes
from tcc.options import Options
from tcc.passes.choose.choices_file import read_lines
from tcc.passes.choose.content import site
from tcc.passes.choose.ledger import Line, ListeningLedger
from tcc.passes.program.join_programs import join_programs
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import KernelKey
from tcc.passes.traffic import unfused_bytes
from tcc.runtime.trials import Trial
from tcc.schedule.alternatives import Site, number
from tcc.tune.candidates import TunedKernel
from tcc.tune.kernel_space import KernelSpace
from tcc.tune.words import words
from tcc.variants import check_options, optimise, resolve_targets, variant_backends, variant_of
from tcc.variants import lower as lower_variants


class TrialCompiler:
    """A model for one CPU whose kernels can be compiled with forced choices.

    `home` is the section of the lock for its target and cores. `kernels` are the kernels of the
    model, each with its analytic choice and the space of its candidates; kernels that a line of
    --choices forces are not among them. `constants` is the size of the model's constants in bytes.
    """

    def __init__(self, model: Any, options: Options) -> None:
        """Raises UserError if a compile would, and for a target that is not a single CPU."""
        self._model, self._options, self._trace = model, options, Trace()
        self._lines = () if options.choices is None else read_lines(options.choices)
        self._ledger = ListeningLedger(self._lines)
        targets = resolve_targets(options)
        check_options(options, targets)
        graph, _ = load_called(
            model,
            dict(options.inputs),
            allow_pickle=options.allow_pickle,
            budgets=options.budgets,
        )
        self.constants = constant_bytes(graph)
        codes = variant_backends(targets, options, self.constants, ledger=self._ledger)
        (code,) = codes if len(codes) == 1 else (None,)
        planner = None if code is None else code.planner
        homes = [*self._ledger.entered]  # other targets have no section in a lock
        if code is None or len(homes) != 1 or not isinstance(planner, CoreChooser):
            raise UserError(
                "tcc tune measures kernels of one CPU",
                where=f"--target {options.target}",
                hint="pin the choices for other targets: tcc tune MODEL --pin",
            )
        code.share_code()
        self._code, self._planner = code, planner
        self._facts = common_facts(targets, options, sum(1 for _ in walk_nodes(graph)))
        self._unfused, self._triple = unfused_bytes(graph), targets[0].triple
        optimised = optimise(graph, codes, options, self._trace)
        for optimised_graph in optimised[0]:
            code.check(optimised_graph)
        ((_, self._parts),) = lower_variants(codes, optimised, self._trace)
        self.home = homes[0]
        self._sites: dict[KernelKey, Site] = {}
        self._keys: dict[str, KernelKey] = {}
        for key in planner.keys.values():
            self._sites[key] = site(planner.kind, *key)
            self._keys[self._sites[key].digest] = key
        forced = {line.site for line in self._lines}
        self.kernels = tuple(self._kernel(digest) for digest in self._keys if digest not in forced)
        self._changed: frozenset[str] = frozenset()

    def _kernel(self, digest: str) -> TunedKernel:
        key = self._keys[digest]
        analytic = self._ledger.exact[digest]()
        here = self._sites[key]
        space = KernelSpace(self._planner, key, analytic)
        return TunedKernel(digest, words(here.kind, here.content), analytic, space)

    def compile_trial(self, choices: Mapping[str, str], output: Path) -> Trial:
        """Compiles the model with forced kernels into the artifact `output`.

        `choices` maps digests of sites to texts of kernels; all other kernels are the analytic
        ones. A choice that does not fit its kernel has no effect, and is in `Trial.refused`.
        Raises TccError if the trial cannot be compiled.
        """
        return within(self._options.budgets, lambda: self._compiled(choices, output))

    def _compiled(self, choices: Mapping[str, str], output: Path) -> Trial:
        lines = (Line(s, text, s, True) for s, text in choices.items())
        self._ledger.force([*self._lines, *lines])
        self._planner.forget(self._keys[s] for s in self._changed.union(choices))
        self._changed = frozenset(choices)
        # As in a compile, the first lowering chooses the layouts of constants for all programs.
        *special, general = [
            self._code.lowered_again(part, self._trace)
            for part in (*self._parts[1:], self._parts[0])
        ]
        parts = (general, *special)
        variant = variant_of(self._code, parts, self._unfused, self._options, self._trace)
        self._code.write([variant], self._facts, "trial", output, self._triple)
        refused = {line.site: why for line, why in self._ledger.met.items() if why}
        bounds = join_programs(parts[0], parts[1:]).table.bounds
        sites = [self._sites[self._planner.keys[bound]].digest for bound in bounds]
        prices = [number(self._planner.price(bound.group, bound.schedule)) for bound in bounds]
        steps = [n if isinstance(n, int) else None for n in variant.facts["steps"]]
        digests = tuple(None if n is None else sites[n] for n in steps)
        price = sum(prices[n] for n in steps if n is not None)
        return Trial(output, dict(choices), refused, digests, price)
