"""A process that checks batches of seeds: `python -m tests.lib.fuzz.worker A:B,B:C MODE,MODE KIND`.

It prints the failures of each finished batch as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from . import chain_check, compiled, open_compiled

CHECKS = {
    "graphs": compiled.check,
    "open": open_compiled.check,
    "chains": chain_check.check,
}


def main(batches: str, modes: str, kind: str) -> None:
    for batch in batches.split(","):
        first, last = map(int, batch.split(":"))
        failures = CHECKS[kind](range(first, last), modes.split(","))
        print(json.dumps([asdict(failure) for failure in failures]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
