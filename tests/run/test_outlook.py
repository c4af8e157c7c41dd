"""What a plan expects of machines that are not here: terms of a batch, and what is named where ranks do not pay."""

from dataclasses import replace

import numpy as np
import pytest

from ptymesh.engines import ENGINES
from ptymesh.run.outlook import CLUSTERS, REMEDIES, Outlook, lines, outlook
from ptymesh.run.plan import Scan

STEP_PX = 20.0
POSITIONS = np.stack(np.meshgrid(np.arange(20), np.arange(30), indexing="ij"), axis=-1).reshape(-1, 2) * STEP_PX
SCAN = Scan(POSITIONS, (128, 128), (544, 736), (4.0, 4.0), 1, 1, 0, 2 * 128 * 128, 4, 0)


def found(engine: str = "rpie", scan: Scan = SCAN) -> list[Outlook]:
    return outlook(scan, ENGINES[engine](batch=64), pairs=2)


def test_one_rank_is_the_measure() -> None:
    """A sweep moves 96 bytes a pixel, twice with shifted probes, at 0.4 of 3.3 TB/s."""
    sweep = 32 * 2 * 96 * 128 * 128 / (0.4 * 3.3e12)
    for one in found():
        assert one.alone["sweep"] == pytest.approx(sweep) and one.terms["sweep"] == pytest.approx(sweep)
        assert one.alone["launches"] == one.terms["launches"] == pytest.approx(126 * 4e-6)
        assert set(one.alone) == {"sweep", "object", "launches"}, "it speaks to nobody"
        assert 0 < one.efficiency < 1


def test_an_all_reduce_of_what_all_views_touch() -> None:
    (near, *_), side = found(), np.sqrt(32 * 8 * STEP_PX**2)
    assert near.layout == "replicated" and near.cluster is CLUSTERS[0]
    assert near.terms["sums"] == pytest.approx(2 * 7 / 8 * 24 * (side + 128) ** 2 / 450e9, rel=0.01)
    assert near.terms["latency"] == pytest.approx(3e-6 * 2 * 3)


def test_many_ranks_take_tiles_and_lose_more() -> None:
    near, far, farther = found()
    assert (far.layout, farther.layout) == ("tiled", "tiled")
    assert near.efficiency > far.efficiency > farther.efficiency
    slow = replace(CLUSTERS[1], latency=1e-3)
    late = Outlook(slow, "tiled", far.alone, {**far.terms, "latency": 1e-2})
    assert late.fault == "latency" and "a larger batch" in late.sentence and late.sentence.startswith("64 GPUs")


def test_fast_enough_needs_no_remedy() -> None:
    """Long sweeps hide all else."""
    modes = found(scan=replace(SCAN, modes=1000, window=(32, 32)))
    assert (
        modes[0].efficiency > 0.8 and modes[0].sentence == f"8 GPUs on NVLink: {modes[0].efficiency:.0%} (replicated)."
    )


def test_every_fault_has_a_remedy() -> None:
    for engine in ("rpie", "lsqml", "adam", "cg", "dm"):
        for scan in (SCAN, replace(SCAN, slices=50), replace(SCAN, modes=20), replace(SCAN, positions=POSITIONS * 9)):
            for one in outlook(scan, ENGINES[engine](), pairs=2):
                assert (one.layout, one.fault) in REMEDIES, one
    assert len(lines(found())) == 6
