"""The work of `tcc quantize`: measures ways to quantise a model, and writes the best."""

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from tcc.artifact import input_errors, load
from tcc.cli.arrays import make_inputs
from tcc.cli.opened import check_pair
from tcc.cli.peers.peer import CAP, Peer, PeerKind
from tcc.cli.progress import progress
from tcc.cli.show import print_json, say, say_all
from tcc.driver import compile_model, model_inputs
from tcc.errors import file_errors
from tcc.options import Options
from tcc.runtime import Module
from tcc.runtime.quantised import QuantisationBounds, QuantisationSearch, check_files
from tcc.runtime.samples import StoredSamples
from tcc.runtime.terminal import Table
from tcc.runtime.whole_files import write_whole
from tcc.temporary import temporary_folder

_QUANTIZER = PeerKind(
    "ONNX Runtime", "tcc.cli.peers.ort_quantizer", "onnxruntime", "'tcc[quantize]'"
)


def quantize(
    model: Path,
    data: tuple[str, ...],
    check: tuple[str, ...],
    output: Path,
    error: float | None,
    top1: float | None,
    methods: tuple[str, ...],
    threads: int | None,
    as_json: bool,
) -> int:
    """Writes the quantised model, prints the tables, and returns the exit code.

    The arguments are the options of the command.  The exit code is 1 if no choice keeps the bounds.
    """
    check_pair(model, None)
    bounds, threads = QuantisationBounds(error, top1), threads or len(os.sched_getaffinity(0))
    with ExitStack() as stack, input_errors():
        stage = stack.enter_context(progress(f"quantising {model.name}"))
        samples = StoredSamples(stack.enter_context(temporary_folder()))
        check_files(model, output)
        ports = model_inputs(model, ())
        reader = partial(make_inputs, ports, seed=0)
        samples.add(ports, data, reader)
        calibrated = samples.check_ranges(", ".join(data))
        samples.add(ports, check, reader)
        arguments = tuple(map(str, (samples.folder, calibrated, samples.count)))
        row, cap = replace(_QUANTIZER, arguments=arguments), CAP * samples.count
        stage("running the model")
        quantizer = stack.enter_context(Peer("", model, {}, threads, row=row, cap=cap))

        def compiled(source: Path, artifact: Path) -> Module:
            compile_model(source, Options(), artifact)
            return load(artifact, threads)

        search = QuantisationSearch(
            model, samples, calibrated, bounds, quantizer.ask, compiled, stage
        )
        winner = search.best(methods)
        stage("timing")
        times = search.times()
        if winner is not None:
            with file_errors("the quantised model cannot be written", output):
                write_whole(output, winner.model.read_bytes())
        if as_json:
            print_json(search.record(times, winner))
        else:
            say_all(Table([*rows]) for rows in search.tables(times, winner))
            say(search.last_line(winner, output))
    return int(winner is None)
