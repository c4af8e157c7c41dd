"""Lets test_cpu.py and triton_checks.py find references.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
