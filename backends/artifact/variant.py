"""A variant of an artifact: the model as a program for one kind of target, with code and
weights."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.gpu_binaries import GpuImages
from tcc.backends.artifact.weight_section import BytesLike, Range, byte_count
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.program import Program, constant_registers
from tcc.runtime.sections import NEEDS_SECTION, PROGRAM_SECTION
from tcc.target import isa_feature


@frozen
class Variant:
    """A complete form of the model; the loader chooses one of them.

    `target` is a name for people. `objects` are relocatable ELF files that define the program's
    kernels (hidden, with the kernel ABI of runtime.h). If the kernels run on GPUs, `gpu` has them
    instead.

    `needs` is the table of `encode_needs`, against which the runtime checks launches. It is empty
    for kernels that were written by hand, and then nothing is checked. `weights` are the parts of
    the weights; the program has their offsets. `ranks` is the number of ranks for which the model
    is divided; with 1, it is not. `plan` counts the plans for this number of ranks from 0; the
    loader takes the first that fits the ranks' memory. If the ranks' weights differ, `rank_weights`
    has the parts of each rank, all of one size, and `weights` are empty. `features` are the
    instruction sets that the CPU must have. `facts` are further entries of the manifest, and
    `listings` the kernels' texts by symbol.
    """

    target: str
    program: Program
    weights: Sequence[BytesLike] = ()
    objects: tuple[bytes, ...] = ()
    features: Sequence[str] = ()
    gpu: GpuImages | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    listings: Mapping[str, str] = field(default_factory=dict)
    needs: bytes = b""
    ranks: int = 1
    rank_weights: Sequence[Sequence[BytesLike]] = ()
    plan: int = 0

    @property
    def program_bytes(self) -> bytes:
        """Returns the encoded program."""
        return encode_program(self.program)

    def weights_of(self, rank: int) -> Sequence[BytesLike]:
        """Returns the parts of the weights of a rank."""
        return self.rank_weights[rank] if self.rank_weights else self.weights


def check_variants(variants: Sequence[Variant]) -> None:
    """Raises InternalError if variants do not fit one another.

    All variants must have the same ports, but the states of variants of different plans may have
    different sizes.  No two kernels that are linked may have the same name.
    """
    if not variants:
        raise InternalError("an artifact needs a variant", where="link")
    symbols: set[str] = set()
    ports: dict[tuple[int, int], dict[str, Any]] = {}
    whole_ports = _without_states(describe_ports(variants[0].program))
    for variant in variants:
        kernels = variant.program.kernels
        sizes = list(map(byte_count, variant.rank_weights))
        if len(set(sizes)) > 1 or len(sizes) not in (0, variant.ranks):
            raise InternalError("a variant lacks weights of its ranks", where="link")
        own_ports = describe_ports(variant.program)
        if (
            ports.setdefault((variant.ranks, variant.plan), own_ports) != own_ports
            or _without_states(own_ports) != whole_ports
        ):
            raise InternalError(
                f"the variants {variants[0].target} and {variant.target} have different ports",
                where="link",
            )
        if variant.gpu is None and not symbols.isdisjoint(kernels):
            raise InternalError("two variants link kernels of one name", where="link")
        symbols.update(kernels if variant.gpu is None else ())


_HIDDEN: dict[str, Any] = dict.fromkeys(("shape", "text"))


def _without_states(ports: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest's ports without the shapes of states, of which each rank has a part."""
    states = {port["state"] for port in ports["outputs"]}
    return {
        "inputs": [
            port | _HIDDEN if number in states else port
            for number, port in enumerate(ports["inputs"])
        ],
        "outputs": [port | _HIDDEN if port["state"] >= 0 else port for port in ports["outputs"]],
    }


def describe_ports(program: Program) -> dict[str, Any]:
    """Returns the manifest's entries `inputs` and `outputs`."""
    constants = constant_registers(program)
    return {
        side: [
            {
                "name": port.name,
                "dtype": port.dtype.name,
                "shape": [constants.get(register) for register in port.dims],
                "text": port.text,
                "state": port.state,
            }
            for port in ports
        ]
        for side, ports in (("inputs", program.inputs), ("outputs", program.outputs))
    }


def describe_variant(
    variant: Variant,
    weights: Sequence[Range],
    images: Range,
    ports: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the entry of a variant in the manifest's `variants`.

    `weights`, by rank, and `images` are ranges of the weight section.  `ports` are those of the
    artifact; an entry has `inputs` and `outputs` of its own if they differ.
    """
    program = variant.program
    entry = {
        **variant.facts,
        "target": variant.target,
        "features": list(variant.features),
        "kernel_count": len(program.kernels),
        "arena_bytes": constant_registers(program).get(program.arena),
        "weights": {"offset": weights[0].offset, "bytes": weights[0].size},
    }
    if variant.ranks > 1:
        entry["ranks"] = variant.ranks
        entry["weights"]["offsets"] = [part.offset for part in weights]
    if variant.plan:
        entry["plan"] = variant.plan
    own_ports = describe_ports(program)
    entry |= own_ports if own_ports != ports else {}
    if variant.gpu is not None:
        entry["gpu"] = {
            "platform": variant.gpu.platform.name.lower(),
            "offset": images.offset,
            "bytes": images.size,
            "images": [
                {"arch": v.arch, "form": v.form.name.lower(), "needs": v.needs}
                for v in variant.gpu.variants
            ],
        }
    return entry


# ---- C texts -------------------------------------------------------------------------------------


def variant_source(number: int, variant: Variant) -> str:
    """Returns C text that declares the kernels, features and program of variant `number`.

    The text of `row_source` uses these declarations.
    """
    # Kernels for GPUs are not linked.
    symbols = () if variant.gpu is not None else variant.program.kernels
    for kernel in symbols:
        if not re.fullmatch(r"[A-Za-z_.$][\w.$]*", kernel, flags=re.ASCII):
            raise InternalError(f"'{kernel}' cannot be a symbol", where="link")
    declarations = "\n".join(
        f'extern __attribute__((visibility("hidden"))) void tcc_k{number}_{i}(void *const *, '
        f'const int64_t *, int64_t, int64_t, void *) __asm__("{kernel}");'
        for i, kernel in enumerate(symbols)
    )
    table = ", ".join(f"tcc_k{number}_{i}" for i in range(len(symbols))) or "0"
    rows = [isa_feature(feature) for feature in variant.features]
    checks = ", ".join(
        f'{{"{row.name}", {row.leaf}u, {row.subleaf}u, {row.reg}u, {row.bit}u, {row.xcr0}ull}}'
        for row in rows
    )
    name = f"tcc_program{number}"
    return f"""{declarations}
static const tcc_kernel kernels{number}[] = {{{table}}};
static const tcc_feature features{number}[] = {{{checks or "{0, 0, 0, 0, 0, 0}"}}};
__asm__(".pushsection {PROGRAM_SECTION}{number},\\"a\\"\\n"
        ".balign 64\\n"
        "{name}_begin: .incbin \\"program{number}.bin\\"\\n"
        "{name}_end: .byte 0\\n"
        ".popsection\\n");
HIDDEN const uint8_t {name}_begin[], {name}_end[];
{_needs_source(number)}"""


def _needs_source(number: int) -> str:
    name = f"tcc_needs{number}"
    return f"""__asm__(".pushsection {NEEDS_SECTION}{number},\\"a\\"\\n"
        "{name}_begin: .incbin \\"needs{number}.bin\\"\\n"
        "{name}_end: .byte 0\\n"
        ".popsection\\n");
HIDDEN const uint8_t {name}_begin[], {name}_end[];
"""


def row_source(number: int, variant: Variant, weights: Sequence[Range], images: Range) -> str:
    """Returns the C text of a variant's row in the table of variants."""
    kernels = "0" if variant.gpu is not None else f"kernels{number}"
    ranges = ", ".join(f"{{{part.offset}ull, {part.size}ull}}" for part in weights)
    needs = [f"tcc_needs{number}_{end}" if variant.needs else "0" for end in ("begin", "end")]
    return f"""    {{
        .target = "{variant.target}",
        .ranks = {variant.ranks},
        .plan = {variant.plan},
        .program = tcc_program{number}_begin,
        .program_end = tcc_program{number}_end,
        .needs = {needs[0]},
        .needs_end = {needs[1]},
        .kernels = {kernels},
        .n_kernels = {len(variant.program.kernels)},
        .features = features{number},
        .n_features = {len(variant.features)},
        .weights = (const tcc_range[]){{{ranges}}},
        .images = {{{images.offset}ull, {images.size}ull}},
    }},
"""
