"""The variants of an artifact: one program for the CPU, one or more for each kind of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
from tcc.backends.gpu.compile import Compilers
from tcc.backends.host import encode_program
from tcc.backends.section import BytesLike
from tcc.backends.variant import Variant
from tcc.cpu_code import CpuCode
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.gpu_code import GpuCode, alike, asked_by_gpus
from tcc.ir.graph import Graph
from tcc.ir.op import Array
from tcc.ir.program import steps_of
from tcc.ir.verify_program import verify_program
from tcc.options import Options
from tcc.passes.layouts import Placed
from tcc.passes.lower_model import Lowered
from tcc.passes.manager import Pass
from tcc.passes.pipeline import run_pipeline
from tcc.passes.state import bind_states
from tcc.passes.traffic import traffic, unfused_bytes
from tcc.passes.winograd import Limits
from tcc.target import Target

Code: TypeAlias = CpuCode | GpuCode


def check_options(options: Options, targets: Sequence[Target]) -> None:
    """Raises UserError for options that none of the targets has."""
    gpus = any(target.gpus for target in targets)
    if options.precision == "tf32" and not gpus:
        raise UserError("tf32 is a precision of GPUs", where="--precision")
    if options.allow_host and not gpus:
        raise UserError("all code is the host's already", where="--allow-host")
    if options.gpu_kernels != "auto" and not gpus:
        raise UserError("there are kernels for GPUs only with a GPU target", where="--gpu-kernels")
    if options.machine is not None and all(target.gpus for target in targets):
        raise UserError("machine files describe processors, not GPUs", where="--machine")


def variant_codes(
    targets: Sequence[Target],
    options: Options,
    constants: int,
    compilers: Compilers | None = None,
) -> tuple[Code, ...]:
    """What makes each variant, in the order of the targets; a model has so many bytes of
    `constants`, and all kernels for GPUs are compiled by `compilers`.

    GPUs that are much alike share one, others have their own.
    """
    codes: list[Code] = []
    for target in targets:
        if target.gpus:
            asked = asked_by_gpus(target.gpus, options)
            codes += [GpuCode(part, options, asked, compilers) for part in alike(target)]
        else:
            codes.append(CpuCode(target, options, constants))
    return tuple(codes)


def optimise(graph: Graph, codes: Sequence[Code], options: Options, trace: Trace) -> list[Graph]:
    """`graph` as each variant will lower it; those that ask for the same share one."""
    done: dict[tuple[Limits | None, tuple[Pass, ...]], Graph] = {}
    graphs = []
    for code in codes:
        key = limits, asked = code.limits, code.asked
        if key not in done:
            with trace.stage(_label(code, codes) + "optimise"):
                found = run_pipeline(graph, options.level, trace, limits=limits, asked=asked)
                done[key] = bind_states(found, options.state)
        graphs.append(done[key])
    return graphs


def lower(
    codes: Sequence[Code], optimised: Sequence[Graph], trace: Trace
) -> list[tuple[Code, Lowered]]:
    """The programs, and what makes code of them; GPUs for which the same came out share it."""
    found: list[tuple[Code, Lowered]] = []
    for code, graph in zip(codes, optimised, strict=True):
        with trace.stage(_label(code, codes) + "lower"):
            lowered = code.lower(graph)
        code.begin(lowered, _names(lowered))
        for n, (known, first) in enumerate(found):
            # only GPUs have several parts of one kind
            if known.target.kind == code.target.kind and first.same_as(lowered):
                found[n] = _joined(known, code), first
                break
        else:
            found.append((code, lowered))
    return found


def make_variants(
    graph: Graph, optimised: Sequence[Graph], codes: Sequence[Code], options: Options, trace: Trace
) -> list[Variant]:
    """Each optimised graph as code; `graph` is the model as it was given."""
    variants: list[Variant] = []
    unfused = unfused_bytes(graph)
    found = lower(codes, optimised, trace)
    for code, lowered in found:
        label = _label(code, [each for each, _ in found])
        variants.append(_variant(code, lowered, unfused, options, trace, label, variants))
    return variants


def _names(lowered: Lowered) -> tuple[str, ...]:
    """Of its kernels."""
    return tuple(f"tcc_kernel_{n}" for n in range(len(lowered.kernels)))


def _joined(one: Code, other: Code) -> Code:
    """For the GPUs of both."""
    made, gpus = copy(one), one.target.gpus + other.target.gpus
    made.target = replace(one.target, archs=tuple(gpu.arch for gpu in gpus), gpus=gpus)
    return made


def _label(code: Code, codes: Sequence[Code]) -> str:
    """What names a variant's stages, where there are several."""
    return f"{code.target.text}: " if len(codes) > 1 else ""


def _variant(
    code: Code,
    lowered: Lowered,
    unfused: int | None,
    options: Options,
    trace: Trace,
    label: str,
    earlier: Sequence[Variant],
) -> Variant:
    names = _names(lowered)
    with trace.stage(label + "generate code"):
        lowered = code.fitted(lowered, names)
        made = code.generate(lowered, names)
    with trace.stage(label + "pack weights"):
        packed = _shared([part() for part in lowered.weights.parts()], earlier)
    program = replace(lowered.program, kernels=names, scratch=made.scratch)
    verify_program(program)
    facts = {
        **made.facts,
        **_traffic(lowered.placed, unfused),
        "rounded": [{"weights": r.sources, "type": r.type} for r in lowered.weights.rounded],
        "steps": list(steps_of(program.body)),
    }
    listings = dict(zip(names, made.listings, strict=True)) if options.keep_ir else {}
    return Variant(
        code.target.text,
        encode_program(program),
        names,
        packed,
        made.objects,
        code.target.profile.features,
        made.gpu,
        facts,
        listings,
    )


def _shared(packed: list[Array], earlier: Sequence[Variant]) -> Sequence[BytesLike]:
    """The weights of an earlier variant if they are equal: one copy of them is kept."""
    for variant in earlier:
        if len(variant.weights) == len(packed) and all(
            np.array_equal(np.asarray(old).view(np.uint8), new.view(np.uint8))
            for old, new in zip(variant.weights, packed, strict=True)
        ):
            return variant.weights
    return packed


def _traffic(placed: Placed, unfused: int | None) -> dict[str, Any]:
    """What a run moves through memory, and would move node by node; null where sizes are open."""
    found = traffic(placed)
    return {"traffic": None if found is None else asdict(found) | {"unfused": unfused}}
