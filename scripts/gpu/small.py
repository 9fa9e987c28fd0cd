"""Runs kernels of a folder once each, for tools that watch a process.

    python -m gpu.small FOLDER NAME...

The working directory is the folder. The exit code is 1 if a result is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpu.worker import answer


def main() -> int:
    """Returns the exit code."""
    folder, *names = sys.argv[1:]
    index = json.loads((Path(folder) / "index.json").read_text())
    items = {item["name"]: item for item in index["items"]}
    common = {"task": "small", "folder": folder, "device": index["device"]}
    wrong = 0
    for name in names:
        response = answer({**common, "item": items[name]})
        error = response.get("result", {}).get("error", float("inf"))
        wrong += not error <= items[name]["tolerance"]
        print(f"{name}: {response.get('failed') or error}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
