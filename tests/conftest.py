"""What holds for all tests."""

from __future__ import annotations

import gc
import os

# Tests run one to a core: a product whose threads wait for one another takes three times as long.
# NumPy and torch read these when they are imported.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def pytest_collection_finish() -> None:
    """Collected tests live to the end, all 20,000: later collections need not walk over them."""
    gc.collect()
    gc.freeze()
