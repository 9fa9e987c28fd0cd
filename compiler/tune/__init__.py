"""The lock: choices of kernels that are kept in a file, and what a compile takes of it."""
