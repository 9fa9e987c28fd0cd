"""Starts `build.py` inside `.venv`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import enter

enter("gpu", "dev", "models")  # tcc with Triton, and what builds the models

from gpu.build import main

sys.exit(main())
