"""Starts `build.py` inside `.venv`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # not this folder: its names are common

from environment import enter

enter("gpu", "dev", "models")  # tcc with Triton, and what builds the models

from gpu.build import main

sys.exit(main())
