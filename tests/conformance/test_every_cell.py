"""Every family of engines x ranks x layout x threads x stopped and resumed elsewhere: the same bits.

`make conformance` runs these; `make test` has the pairs of test_bits.py.
"""

from pathlib import Path
from typing import Any

import pytest
from test_bits import RUNS, outcome_with, same_bits, undisturbed

from ptymesh.engines import ENGINES

pytestmark = pytest.mark.every_cell
SIDES = (32, 32)


@pytest.mark.parametrize("layout", ["panels", "tiled"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("run", list(RUNS))
@pytest.mark.parametrize("threads", [1, 2])
def test_cell(ranks: Any, run: str, size: int, layout: str, threads: int) -> None:
    for one in ranks(size, outcome_with, {"threads": threads}, run, SIDES, layout):
        same_bits(undisturbed(run, SIDES), one)


@pytest.mark.parametrize("layout", ["panels", "tiled"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("run", list(RUNS))
def test_resumed_elsewhere(ranks: Any, tmp_path: Path, run: str, size: int, layout: str) -> None:
    """On another number of ranks, in the other layout, with another number of threads."""
    engine, _, stage = RUNS[run]
    whole = ENGINES[engine].model_fields["batch"].annotation is type(None)
    batches = {None: 1, 9: 5, 21: 2}[None if whole else stage.get("batch", 9)]
    stop, other = min(batches + 2, 2 * batches), "tiled" if layout == "panels" else "panels"  # of three epochs
    ranks(size, outcome_with, {"folder": tmp_path, "stop": stop}, run, SIDES, layout)
    for one in ranks(size % 4 + 1, outcome_with, {"folder": tmp_path, "threads": 2}, run, SIDES, other):
        same_bits(undisturbed(run, SIDES), one)
