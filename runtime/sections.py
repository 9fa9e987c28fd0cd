"""The format of artifact files, which the link step writes and the loaders read.

An artifact is an ELF shared library with the manifest (JSON) in a section.  The weights follow the
ELF image or are in a side file.  The file with the weights ends with a trailer that locates them
(src/weights.c).
"""

from __future__ import annotations

import struct

# The version of the kernel ABI, the program form and the manifest together; loaders refuse other
# versions.
ABI_VERSION = 3
MANIFEST_SECTION = ".tcc.manifest"
# The section of a variant's encoded program; the variant's number is appended to the name.  A zero
# byte follows the program.
PROGRAM_SECTION = ".tcc.program"
# The section of the needs of a variant's kernels, in the same form.
NEEDS_SECTION = ".tcc.needs"
# The section of deflated JSON that maps each kernel to its LLVM IR.  It is never loaded, and
# `strip` removes it.
LISTINGS_SECTION = ".tcc.listings"
MOST_LISTINGS = 48 << 20  # the limit of all listings together, in bytes before deflation
# The section of the assets' bytes, one after the other.  A zero byte follows them.
ASSETS_SECTION = ".tcc.assets"
SIDE_SUFFIX = ".weights"

# The fields of the trailer: magic, version, offset and size of the weights in bytes, SHA-256 of the
# weights.
TRAILER = struct.Struct("<8sQQQ32s")
TRAILER_MAGIC = b"TCCWGTS\0"
TRAILER_VERSION = 1

# The fields of the seal: magic, the ELF image's size in bytes, the image's SHA-256.  The seal
# follows the image and precedes the padding before the weights.
SEAL = struct.Struct("<8sQ32s")
SEAL_MAGIC = b"TCCSEAL\0"
