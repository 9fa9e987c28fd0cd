"""A process for one batch of seeds: `python -m tests.fuzz.worker A:B MODE,MODE`.

Prints a line of JSON for each failure.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from .compiled import check


def main(seeds: str, modes: str) -> None:
    first, last = map(int, seeds.split(":"))
    for failure in check(range(first, last), modes.split(",")):
        print(json.dumps(asdict(failure)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
