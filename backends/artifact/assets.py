"""Assets: files that an artifact holds for users of its model, such as a tokenizer.

They are a read-only section of the artifact. A table has the name, the range and the hash of each
asset; equal contents are stored once. The manifest lists names, sizes and hashes.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.backends.artifact.header import c_text
from tcc.runtime.sections import ASSETS_SECTION

NO_ASSETS: Mapping[str, bytes] = MappingProxyType({})


def asset_entries(assets: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the manifest's entry `assets`, ordered by name; empty without assets."""
    if not assets:
        return {}
    return {
        "assets": [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(assets.items())
        ]
    }


def write_assets(folder: Path, assets: Mapping[str, bytes]) -> None:
    """Writes assets.h and, if there are assets, assets.bin, which it includes.

    assets.h defines TCC_ASSETS, the address of their table, which is 0 without assets.
    """
    source = "#define TCC_ASSETS 0\n"
    if assets:
        offsets: dict[bytes, int] = {}
        size = 0
        for _, data in sorted(assets.items()):
            if data not in offsets:
                offsets[data] = size
                size += len(data)
        (folder / "assets.bin").write_bytes(b"".join(offsets))
        rows = (_row(name, offsets[data], data) for name, data in sorted(assets.items()))
        source = f"""__asm__(".pushsection {ASSETS_SECTION},\\"a\\"\\n"
        "tcc_assets_begin: .incbin \\"assets.bin\\"\\n"
        "tcc_assets_end: .byte 0\\n"
        ".popsection\\n");
HIDDEN const char tcc_assets_begin[], tcc_assets_end[];
static const tcc_asset asset_table[] = {{
{"".join(rows)}}};
static const tcc_assets assets = {{
    asset_table, {len(assets)}, tcc_assets_begin, tcc_assets_end
}};
#define TCC_ASSETS &assets
"""
    (folder / "assets.h").write_text(source)


def _row(name: str, offset: int, data: bytes) -> str:
    digest = ", ".join(map(str, hashlib.sha256(data).digest()))
    return f'    {{"{c_text(name)}", {offset}ull, {len(data)}ull, {{{digest}}}}},\n'
