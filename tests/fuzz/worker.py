"""A process for batches of seeds: `python -m tests.fuzz.worker A:B,B:C MODE,MODE`.

Prints a line of JSON for each batch as it is done: its failures.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from .chain_check import MODE, check_chains
from .compiled import check


def main(batches: str, modes: str) -> None:
    for batch in batches.split(","):
        first, last = map(int, batch.split(":"))
        seeds = range(first, last)
        failures = check_chains(seeds) if modes == MODE else check(seeds, modes.split(","))
        print(json.dumps([asdict(failure) for failure in failures]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
