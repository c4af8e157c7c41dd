"""Lets test_cpu.py and triton_checks.py find twins.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
