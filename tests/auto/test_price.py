"""Prices of epochs are those that were measured; what costs more is not declared to cost less."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ptymesh.auto.price import Price, work
from ptymesh.simulate import simulate

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-25-prices.json"
NOTHING: frozenset[str] = frozenset()


def test_a_sweep_costs_one() -> None:
    assert Price(near=False).epoch("rpie", 1, NOTHING, lit=False) == 1


def test_prices_are_those_that_were_measured() -> None:
    """Three of four within 25 %, nineteen of twenty within 45 %, and none further off than by a factor of 1.7."""
    off = []
    for row in json.loads(MEASURED.read_text())["rows"]:
        price = Price(**row["model"])
        declared = price.epoch(row["engine"], row["waves"], frozenset(row["own"]), row["lit"])
        off.append(abs(math.log(declared / row["epoch"])))
        if row["own"]:  # the others take a pass, which is next to nothing
            off.append(abs(math.log(price.judging(declared, frozenset(row["own"]), row["held"]) / row["judgement"])))
    assert len(off) > 60
    off.sort()
    for share, factor in ((0.75, 1.25), (0.95, 1.45), (1.0, 1.7)):
        assert off[math.ceil(share * len(off)) - 1] < math.log(factor), (share, off)


@pytest.mark.parametrize(("near", "slices"), [(False, 1), (True, 1), (False, 3)])
def test_nothing_is_free(near: bool, slices: int) -> None:
    price = Price(near, slices)
    plain = price.epoch("rpie", 1, NOTHING, lit=False)
    for own in ("positions", "intensity", "opr"):
        dearer = price.epoch("rpie", 1, frozenset({own}), lit=False)
        assert dearer > plain
        assert price.judging(dearer, frozenset({own}), 0.2) > price.judging(dearer, NOTHING, 0.2) > 0
    assert price.epoch("adam", 1, NOTHING, lit=True) > price.epoch("adam", 1, NOTHING, lit=False)
    assert price.epoch("rpie", 2, NOTHING, lit=False) > plain
    assert plain >= Price(False, 1).epoch("rpie", 1, NOTHING, lit=False)


def test_small_windows_take_longer_than_their_pixels() -> None:
    small, large = (work(simulate(kind="xray", views=4, window=side, seed=1).measurement) for side in (16, 64))
    assert 1 / 16 < small / large < 1
