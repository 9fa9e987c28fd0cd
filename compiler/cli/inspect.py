"""`tcc inspect`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click
from tcc.artifact import input_errors, needed_glibc, read_manifest
from tcc.cli.arrays import inputs_of, program_of
from tcc.cli.choices import COUNT, OUTPUT, PATH, json_flag, run_flags, switch
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.graph import write_graph
from tcc.cli.kernels.facts import kernel_facts, reading_manifest
from tcc.cli.kernels.forms import FORMS, form_text
from tcc.cli.later_modules import decisions as decided
from tcc.cli.later_modules import derivations as derived
from tcc.cli.later_modules import driver, options
from tcc.cli.opened import is_artifact, opened_artifact
from tcc.cli.progress import progress
from tcc.cli.show import print_json, print_text, say, say_all, write_text
from tcc.errors import UserError
from tcc.runtime import load
from tcc.runtime.artifact_page import page
from tcc.runtime.derivation_svg import derivation_svg
from tcc.runtime.derivation_text import decision_lines, derivation_lines
from tcc.runtime.gpu_builds import build_lines
from tcc.runtime.kernel_facts import KernelFacts
from tcc.runtime.kernel_table import (
    StepTime,
    contraction_line,
    kernel_rows,
    kernel_table,
    symbolic_sizes_line,
)
from tcc.runtime.plan_records import plan_records
from tcc.runtime.step_times import measure_steps
from tcc.runtime.terminal import Table
from tcc.zipped import zip_equal


@click.command()
@click.argument("artifact", type=PATH)
@switch(
    "--kernels",
    "Shows the work of each kernel, and its predicted time.",
)
@switch("--measure", "Runs the model, and adds each kernel's time.")
@click.option("--runs", default=20, show_default=True, type=COUNT, help="Runs to measure.")
@run_flags
@click.option(
    "--form",
    type=click.Choice(FORMS),
    help="Prints the model in this form; an artifact has its code only, with --keep-ir.",
)
@click.option("--kernel", metavar="K", help="Prints one kernel; 1/K in variant 1 of an artifact.")
@switch(
    "--derivations",
    "For an ONNX file: other orders of its sums and products, and why each is used or not.",
)
@click.option(
    "--replay",
    type=click.File(errors="replace"),
    help="With --derivations: also a chain from a file, `site NAME` and then its steps.",
)
@click.option(
    "--svg",
    type=OUTPUT,
    help="With --derivations: draws a site before and after: the replayed site, else the first "
    "that changes.",
)
@switch(
    "--choices",
    "show_choices",
    "For an ONNX file: the compiler's decisions, their alternatives with predicted times, and "
    "reasons. With --json in lines that tcc compile --choices reads.",
)
@click.option(
    "--graph",
    type=OUTPUT,
    metavar="FILE",
    help="Writes the graph of kernels and buffers: a picture (.svg), a file for Model Explorer "
    "(.json) or for Netron (.onnx). With --measure it has measured times.",
)
@click.option("--kind", metavar="KIND", help="With --choices: only decisions of this kind.")
@switch("--all", "every", "With --choices: more than 16 schedules of a kernel.")
@switch(
    "--compare",
    "With --choices: forces each alternative alone, and marks those that give the same "
    "kernels. Each takes as long as the listing.",
)
@click.option("--target", metavar="TARGET", help="With --choices: as for tcc compile.")
@click.option("--ranks", metavar="COUNT,...", help="With --choices: as for tcc compile.")
@json_flag
@timeout_flag
def inspect(
    artifact: Path,
    kernels: bool,
    measure: bool,
    runs: int,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    form: str | None,
    kernel: str | None,
    derivations: bool,
    replay: TextIO | None,
    svg: Path | None,
    show_choices: bool,
    graph: Path | None,
    kind: str | None,
    every: bool,
    compare: bool,
    target: str | None,
    ranks: str | None,
    as_json: bool,
) -> None:
    """Shows what ARTIFACT (or the one compiled from an ONNX file) holds.

    Without --measure none of its code runs.

    \b
    Example:
      tcc inspect model.so --measure --threads 2 --timeout 60
      tcc inspect model.so --graph model.svg
      tcc inspect model.onnx --form tile --kernel 0
      tcc inspect model.onnx --derivations --svg site.svg
      tcc inspect model.onnx --choices --kind join
      tcc inspect model.onnx --choices --ranks 4 --kind partition
    """
    if show_choices:
        fields = {"target": target, "ranks": ranks}
        _show_choices(artifact, inputs, fields, kind, as_json, every=every, compare=compare)
        return
    flags = {"--kind": kind, "--all": every, "--compare": compare, "--target": target}
    _refuse("choices", {**flags, "--ranks": ranks})
    if derivations:
        _show_derivations(artifact, inputs, replay, svg, as_json)
        return
    _refuse("derivations", {"--replay": replay, "--svg": svg})
    if form is not None:
        print_text(form_text(artifact, form, kernel, inputs))
        return
    if kernel is not None:
        raise UserError("a kernel is shown in a form", where="--kernel", hint="add --form tile")
    if graph is not None:
        write_graph(artifact, graph, inputs, seed, runs if measure else None, threads)
        return
    with opened_artifact(artifact, inputs, keep_ir=True) as path:
        manifest = read_manifest(path)
        if not (kernels or measure):
            _show_page(artifact, path, manifest, as_json)
            return
        numbers = range(len(manifest["variants"]))
        if measure and len(numbers) > 1:
            running = load(path, error=UserError).variant
            numbers = range(running, running + 1)
        facts = [kernel_facts(manifest, path, number) for number in numbers]
        times = None
        if measure:
            module = load(path, threads, timed=True, error=UserError)
            arrays = inputs_of(path, module.inputs, inputs, seed)
            program = program_of(path, module.variant)
            measured = partial(measure_steps, module, program, facts[0].steps, arrays, runs)
            with input_errors(str(path)):
                times = interruptible(measured)
    pairs = [
        (manifest["variants"][number], variant_facts)
        for number, variant_facts in zip_equal(numbers, facts)
    ]
    with input_errors():
        if as_json:
            records = [
                {"variant": variant.get("target"), **asdict(row)}
                for variant, variant_facts in pairs
                for row in kernel_rows(variant_facts, times)
            ]
            print_json(records)
            return
        for variant, variant_facts in pairs:
            if len(manifest["variants"]) > 1:
                say(f"{variant.get('target')}:")
            say_all(_kernel_lines(variant, variant_facts, times, path))


def _refuse(flag: str, values: Mapping[str, Any]) -> None:
    """Raises UserError if a value is set that has an effect only with the flag --`flag`.

    The user has not given --`flag`. `values` maps other flags to their values.
    """
    for name, value in values.items():
        if value:
            raise UserError(f"{flag} are not asked for", where=name, hint=f"add --{flag}")


def _show_page(artifact: Path, path: Path, manifest: dict[str, Any], as_json: bool) -> None:
    """Prints what the file `path` holds; `artifact` is its name, or that of its model."""
    plans = [*plan_records(manifest, partial(program_of, path))]
    needs, size = needed_glibc(path), path.stat().st_size
    facts = {**manifest, "needs": needs} | ({"plans": plans} if plans else {})
    if as_json:
        print_json(facts)
        return
    with reading_manifest(path, "describe it"):
        say_all([*page(facts, artifact, size, needs)])


def _show_choices(
    model: Path,
    inputs: tuple[str, ...],
    texts: Mapping[str, str | None],
    kind: str | None,
    as_json: bool,
    *,
    every: bool,
    compare: bool,
) -> None:
    if is_artifact(model):
        raise UserError(
            "an artifact does not hold the decisions of its compile",
            where="--choices",
            hint="give the ONNX file",
        )
    fields = options.read_options({**texts}, python=False)
    fields = replace(fields, inputs=driver.optional_inputs(model, inputs))
    with progress(f"compiling {model.name}"):
        ledger = driver.model_choices(model, fields)
    kinds = sorted({decision.site.kind for decision in ledger.decisions()})
    if kind is not None and kind not in kinds:
        raise UserError(
            "the compile has no decision of this kind",
            where=f"--kind {kind}",
            hint=f"there are {', '.join(kinds)}" if kinds else "",
        )
    rows = list(decided.decision_records(ledger, kind, every=every))
    if compare:
        with progress(f"comparing {model.name}") as show:
            decided.mark_same(rows, lambda lines: driver.same_kernels(model, fields, lines, show))
    if as_json:
        for row in rows:
            print_json(row)
        return
    say_all(decision_lines(rows))


def _show_derivations(
    model: Path, inputs: tuple[str, ...], replay: TextIO | None, svg: Path | None, as_json: bool
) -> None:
    if is_artifact(model):
        raise UserError(
            "an artifact does not hold what it was derived from",
            where="--derivations",
            hint="give the ONNX file",
        )
    chain = None if replay is None else replay.read()
    records = derived.derivation_records(driver.model_derivations(model, inputs, chain))
    if svg is not None:
        picture = derivation_svg(*derived.drawn(records))
        write_text(svg, "the picture", picture)
    if as_json:
        print_json(records)
        return
    say_all(derivation_lines(records))


def _kernel_lines(
    variant: dict[str, Any], facts: KernelFacts, times: Sequence[StepTime] | None, path: Path
) -> Iterator[str | Table]:
    yield kernel_table(kernel_rows(facts, times))
    notes = contraction_line(facts, times), symbolic_sizes_line(facts, times is not None)
    yield from filter(None, notes)
    with reading_manifest(path, "say how its kernels were compiled"):
        builds = [*build_lines(variant)]
    yield from builds
