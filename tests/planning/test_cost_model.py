"""Prices of epochs are those that were measured; what costs more is not declared to cost less."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from ptymesh.engines import ENGINES, MPIE, RPIE, Adam
from ptymesh.engines.optimisers import SGD
from ptymesh.planning.cost_model import (
    EpochCost,
    EpochSize,
    batch_for,
    cost_of_judging,
    cost_of_stage,
    epoch_size,
    sweep_work,
)
from ptymesh.planning.device_pace import DevicePace, measure_pace
from ptymesh.simulate import simulate

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-26-prices.json"
SIZE = EpochSize(views=200, window=64 * 64, batches=4, stepped=192 * 192, object=192 * 192)


def test_prices_are_those_that_were_measured() -> None:
    """At the pace that was measured beside them."""
    off = []
    for row in json.loads(MEASURED.read_text())["rows"]:
        model = row["near"], row["slices"], row["waves"], row["opr"], frozenset(row["own"]), row["lit"]
        price = EpochCost(ENGINES[row["engine"]].cost, *model)
        stepped = row["object"] if price.engine_cost.whole else row["stepped"]
        size = EpochSize(row["views"], math.prod(row["window"]), row["batches"], stepped, row["object"])
        off.append(abs(math.log(DevicePace(row["rate"], row["batch_s"]).epoch_seconds(price, size) / row["epoch_s"])))
    assert len(off) > 100
    off.sort()
    for share, factor in ((0.5, 1.1), (0.75, 1.15), (0.9, 1.25), (1.0, 1.5)):
        assert off[math.ceil(share * len(off)) - 1] < math.log(factor), (share, off)


def test_judging_costs_what_was_measured() -> None:
    """Fits to held-out views, one slice or several; a pass costs next to nothing, and may cost twice that."""
    fits, passes = [], []
    for row in json.loads(MEASURED.read_text())["rows"]:
        model = row["near"], row["slices"], row["waves"], row["opr"]
        price, own = EpochCost(ENGINES[row["engine"]].cost, *model), frozenset(row["own"])
        declared = cost_of_judging(price, own, row["held"] * row["views"] * math.prod(row["window"]))
        measured = row["judgement_s"] * row["rate"] * math.prod(row["window"])
        (fits if own else passes).append(abs(math.log(declared / measured)))
    assert len(fits) > 30 and len(passes) > 50
    fits.sort()
    for share, factor in ((0.5, 1.1), (0.8, 1.2), (1.0, 1.6)):
        assert fits[math.ceil(share * len(fits)) - 1] < math.log(factor), (share, fits)
    assert max(passes) < math.log(2.2), passes


@pytest.mark.parametrize(("near", "slices"), [(False, 1), (True, 1), (False, 3)])
@pytest.mark.parametrize("engine", ["rpie", "adam", "lsqml"])
def test_nothing_is_free(engine: str, near: bool, slices: int) -> None:
    def priced(*own: str, waves: int = 1, lit: bool = False) -> EpochCost:
        return EpochCost(ENGINES[engine].cost, near, slices, waves, 2 * ("opr" in own), frozenset(own), lit)

    def pixels(*own: str, waves: int = 1, lit: bool = False) -> float:
        return priced(*own, waves=waves, lit=lit).epoch_work(SIZE)

    plain = pixels()
    for own in ("positions", "intensity", "opr"):
        assert pixels(own) > plain
        assert cost_of_judging(priced(own), frozenset({own}), 1e5) > cost_of_judging(priced(own), frozenset(), 1e5) > 0
        assert cost_of_judging(priced(own, waves=2), frozenset({own}), 1e5) > cost_of_judging(
            priced(own), frozenset({own}), 1e5
        )
    assert pixels(lit=True) > plain and pixels(waves=2) > plain
    assert EpochCost(ENGINES[engine].cost, near, slices, 1, 4, frozenset({"opr"})).epoch_work(SIZE) > pixels("opr")
    assert plain >= EpochCost(ENGINES[engine].cost).epoch_work(SIZE) >= EpochCost().epoch_work(SIZE)
    larger = EpochSize(SIZE.views, SIZE.window, 2 * SIZE.batches, SIZE.stepped, SIZE.object)
    assert EpochCost(ENGINES[engine].cost, near, slices).epoch_work(larger) > plain


def test_stages_have_the_price_of_what_they_do() -> None:
    rpie = ENGINES["rpie"](positions=True, probe={"intensity": True})
    assert cost_of_stage(rpie, True, 2, 3, 2) == EpochCost(
        RPIE.cost, True, 2, 3, 2, frozenset({"positions", "intensity", "opr"})
    )
    assert cost_of_stage(ENGINES["rpie"](), False, 1, 1, 0) == EpochCost()
    lit = ENGINES["adam"](unknowns={"background": True})
    assert cost_of_stage(lit, False, 1, 1, 0) == EpochCost(Adam.cost, has_background=True)
    assert cost_of_stage(SGD(), False, 1, 1, 0) == EpochCost(Adam.cost), "as all torch optimisers"
    assert EpochCost(MPIE.cost) == EpochCost(RPIE.cost) == EpochCost()


def test_small_windows_take_longer_than_their_pixels() -> None:
    small, large = (simulate(kind="xray", views=4, window=side, seed=1).measurement for side in (16, 64))
    assert 1 / 16 < sweep_work(small) / sweep_work(large) < 1
    assert [batch_for(views) for views in (4, 128, 129, 5000)] == [8, 8, 16, 64]
    assert epoch_size(large) == EpochSize(4, 64 * 64, 1, 0.0, 0.0)


def test_the_pace_of_this_machine() -> None:
    """Larger windows take longer, in either precision; what is drawn here leaves torch's threads as they were."""
    before = torch.get_num_threads()
    small, large = (measure_pace((side, side)) for side in (16, 128))
    assert 0 < large.rate < small.rate and large.batch_s >= 0
    assert measure_pace((128, 128), dtype=torch.complex128).rate < 2 * large.rate
    assert torch.get_num_threads() == before
