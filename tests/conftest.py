"""What holds for all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Collected tests live to the end, all 20,000: later collections need not walk over them."""
    gc.collect()
    gc.freeze()
