"""The format of artifact files, which the link step writes and the loaders read.

An artifact is an ELF shared library with the manifest (JSON) in a section.  The weights follow the
ELF image, or lie in a side file; the trailer is at the very end (runtime/src/weights.c).
"""

import struct

# The version of kernel ABI, program form and manifest together; other versions are refused.
ABI_VERSION = 3
MANIFEST_SECTION = ".tcc.manifest"
# One section per variant, with the variant's number at the end: the encoded program and a zero
# byte.
PROGRAM_SECTION = ".tcc.program"
# Deflated JSON that maps a kernel to its LLVM IR; never loaded, and `strip` removes it.
LISTINGS_SECTION = ".tcc.listings"
MOST_LISTINGS = 48 << 20  # the most bytes of all listings before they are deflated
SIDE_SUFFIX = ".weights"

# magic, version, offset and size of the weights, their SHA-256
TRAILER = struct.Struct("<8sQQQ32s")
TRAILER_MAGIC = b"TCCWGTS\0"
TRAILER_VERSION = 1

# Between the ELF image and the padding of the weights: magic, the image's size in bytes, its
# SHA-256.
SEAL = struct.Struct("<8sQ32s")
SEAL_MAGIC = b"TCCSEAL\0"
