"""The artifact file's own format: what the link step writes and the readers expect.

An artifact is an ELF shared library with the manifest (JSON) in a section, and behind the ELF
image, or in a side file, the weights and at the very end the trailer (runtime/src/weights.c).
"""

import struct

# Kernel ABI, program form and manifest together; an artifact of another number is refused.
ABI_VERSION = 3
MANIFEST_SECTION = ".tcc.manifest"
# One for each variant, with its number at the end: the encoded program and a zero.
PROGRAM_SECTION = ".tcc.program"
# Deflated JSON, kernel -> LLVM IR; never loaded, and `strip` removes it.
LISTINGS_SECTION = ".tcc.listings"
MOST_LISTINGS = 48 << 20  # bytes of them, unpacked
SIDE_SUFFIX = ".weights"

# magic, version, offset and size of the weights, their SHA-256
TRAILER = struct.Struct("<8sQQQ32s")
TRAILER_MAGIC = b"TCCWGTS\0"
TRAILER_VERSION = 1

# Behind the ELF image, before the padding of the weights: magic, the image's bytes, their SHA-256.
SEAL = struct.Struct("<8sQ32s")
SEAL_MAGIC = b"TCCSEAL\0"
