"""The names of the ELF sections that tcc puts into artifacts and `tcc.runtime` reads.

The number of a variant follows the names of its program and of its kernels' needs, and a zero byte
stands behind the content of a section.
"""

MANIFEST_SECTION, PROGRAM_SECTION, NEEDS_SECTION = ".tcc.manifest", ".tcc.program", ".tcc.needs"
