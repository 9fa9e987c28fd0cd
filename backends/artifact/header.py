"""The C header of an artifact: its ports and sizes, and the texts of tcc.h and tcc_pool.h."""

import re
from math import prod
from typing import Any

from tcc.backends.artifact.toolchain import runtime_folder
from tcc.ir.program import Port, Program
from tcc.known import all_known
from tcc.zipped import zip_equal


def model_header(name: str, program: Program, manifest: dict[str, Any]) -> str:
    """Returns the text of a header that declares `<name>_api` and includes no other header of tcc.

    Sizes that are known at compile time become macros. The arena size is the largest of all
    variants. A state whose size differs in a plan for N ranks has macros NAME_RANKS_N_... too, and
    NAME_RANKS_N_PLAN_P_... in a further plan for N ranks.
    """
    upper = name.upper()
    port_lists = (("INPUT", program.inputs), ("OUTPUT", program.outputs))
    port_lines = [
        f" * {kind.lower()} {i}: {comment_text(port.name)} {port.dtype.name} "
        f"{comment_text(port.text)}\n"
        for kind, ports in port_lists
        for i, port in enumerate(ports)
    ]
    lines = [f"#define {upper}_{kind}S {len(ports)}" for kind, ports in port_lists]
    lines += _plan_macros(upper, manifest)
    lines.append(f"#define {upper}_WEIGHT_BYTES {manifest['weights']['bytes']}")
    arenas = [variant["arena_bytes"] for variant in manifest["variants"]]
    if None not in arenas:
        lines.append(f"#define {upper}_ARENA_BYTES {max(arenas)}")
    for kind, ports in port_lists:
        entries = manifest[f"{kind.lower()}s"]
        for i, port in enumerate(ports):
            lines.extend(_macros(f"{upper}_{kind}_{i}", port, entries[i]["shape"]))
    include = runtime_folder() / "include"
    pools = (include / "tcc_pool.h").read_text().replace('#include "tcc.h"\n', "")
    macros, api = "\n".join(lines), f"{(include / 'tcc.h').read_text()}\n{pools}"
    return f"""\
/* {name}: a model compiled by tcc.
 *
{"".join(port_lines)} */
#ifndef TCC_MODEL_{upper}_H
#define TCC_MODEL_{upper}_H

{macros}

{api}
#ifdef __cplusplus
extern "C"
#endif
const tcc_api *{name}_api(void);

#endif
"""


def _plan_macros(upper: str, manifest: dict[str, Any]) -> list[str]:
    """Returns macros of the sizes of ports that differ in plans for other numbers of ranks."""
    lines = []
    for variant in manifest["variants"]:
        number = f"_PLAN_{variant['plan'] + 1}" if "plan" in variant else ""
        plan = f"{upper}_RANKS_{variant.get('ranks', 1)}{number}"
        for kind in ("input", "output"):
            ports = zip(manifest[f"{kind}s"], variant.get(f"{kind}s", ()), strict=False)
            for i, (port, own) in enumerate(ports):
                prefix = f"#define {plan}_{kind.upper()}_{i}_DIM_"
                sizes = zip_equal(port["shape"], own["shape"])
                lines += [f"{prefix}{n} {b}" for n, (a, b) in enumerate(sizes) if a != b]
    return list(dict.fromkeys(lines))


def comment_text(text: str) -> str:
    """Returns text for a C comment; it cannot end the comment or begin another."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return re.sub(r"(?<=/)(?=\*)|(?<=\*)(?=/)", " ", printable)


def c_text(text: str) -> str:
    """Returns the content of a C string literal for the UTF-8 bytes of a text or of a path."""
    return "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}"
        for b in text.encode(errors="surrogateescape")
    )


def _macros(prefix: str, port: Port, shape: list[int | None]) -> list[str]:
    name = c_text(port.name)
    lines = [f'#define {prefix}_NAME "{name}"', f"#define {prefix}_RANK {len(shape)}"]
    for i, size in enumerate(shape):
        if size is not None:
            lines.append(f"#define {prefix}_DIM_{i} {size}")
    sizes = all_known(shape)
    if sizes is not None:
        lines.append(f"#define {prefix}_BYTES {(prod(sizes) * port.dtype.bits + 7) // 8}")
    return lines
