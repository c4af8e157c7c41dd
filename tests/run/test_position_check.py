"""Refined positions go on where held-out views are explained better, and are given up where they are not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import RPIE
from ptymesh.engines.base import PositionRefinement
from ptymesh.errors import Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.run.checkpoint_counters import counters_of
from ptymesh.run.position_check import check_epoch
from ptymesh.simulate import simulate

EPOCHS, BATCH = 12, 12
RIGHT, WRONG = (0.0, 3e3), (1.0, 1e5)


@cache
def scan(error_px: float, photons: float) -> pm.Measurement:
    """A scan whose positions are off by up to this."""
    return simulate(
        kind="xray", views=48, window=24, photons_per_view=photons, position_error_px=error_px, seed=4
    ).measurement


def outcome(world: World, layout: str, how: tuple[float, float], folder: Path | None = None, stop: int = 0) -> Any:
    """What one rank ends with: a run from the start, which stops after so many batches, or one from a checkpoint."""
    saved = checkpoint.load(folder, world) if folder and not stop else None
    recon = pm.Reconstruction(scan(*how), device=world, layout=layout, seed=1, saved=saved)  # type: ignore[arg-type]
    recon.stages = [RPIE(epochs=EPOCHS, batch=BATCH, positions=PositionRefinement(start=2))]
    left = iter(range(stop or 1 << 30))
    loop = recon.loop(hold_out=0.15, stop=lambda: next(left, None) is None)
    if folder:
        loop.save = lambda: recon.state.save(folder, loop.problem, {"data": recon.identity()})
    if stop:
        with pytest.raises(Interrupted):
            loop.run()
        return None
    notes = [report.note for report in loop.epochs() if report.note]
    e = recon.state.estimate
    whole = recon.problem.layout.gather_whole(e.object, e).numpy()
    return whole, e.positions.numpy(), e.nominal.numpy(), recon.state.history["held_out"], notes


@cache
def alone() -> Any:
    """What a single rank ends with where positions are right."""
    return outcome(Solo(), "replicated", RIGHT)


def same(one: Any, other: Any) -> None:
    for a, b in zip(one[:4], other[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def test_right_positions_are_not_refined_for_long() -> None:
    _, positions, nominal, _, notes = alone()
    np.testing.assert_array_equal(positions, nominal)
    assert len(notes) == 1 and notes[0].startswith("refined positions were given up after epoch 7, as ")


def test_the_verdict_says_so() -> None:
    recon = pm.Reconstruction(scan(*RIGHT), seed=1)
    recon.stages = [RPIE(epochs=3, batch=BATCH, positions=True)]
    recon.loop(hold_out=0.15).run()
    found = recon.result()
    assert "; refined positions were given up after epoch 2" in found.attrs["verdict_sentence"]
    assert found.attrs["held_out_fitted"] is None, "held-out views stay where they were recorded, as all others do"


def test_wrong_positions_go_on_as_if_nobody_had_judged() -> None:
    *found, notes = outcome(Solo(), "replicated", WRONG)
    assert "explain held-out pixels better than the recorded ones by" in notes[0]
    assert np.abs(found[1] - found[2]).max() > 0.5
    recon = pm.Reconstruction(scan(*WRONG), seed=1)
    recon.stages = [RPIE(epochs=EPOCHS, batch=BATCH, positions=PositionRefinement(start=2, judge=False))]
    reports = list(recon.loop(hold_out=0.15).epochs())
    assert not any(report.note for report in reports)
    np.testing.assert_array_equal(found[1], recon.state.estimate.positions.numpy())
    assert found[3] == recon.state.history["held_out"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "layout"), [(2, "replicated"), (3, "tiled")])
def test_ranks_and_layouts_judge_with_the_same_bits(ranks: Any, size: int, layout: str) -> None:
    for other in ranks(size, outcome, layout, RIGHT):
        same(alone(), other)


def test_a_run_that_goes_on_remembers_what_was_judged(ranks: Any, tmp_path: Path) -> None:
    ranks(2, outcome, "tiled", RIGHT, tmp_path, 8 * 4 + 1)
    found = counters_of(checkpoint.load(tmp_path, Solo()).meta).position_check
    assert found is not None and found.is_refused and found.epochs == 7
    same(alone(), outcome(Solo(), "replicated", RIGHT, tmp_path))


def test_positions_are_judged_halfway() -> None:
    assert check_epoch(PositionRefinement(), 10) == 5
    assert check_epoch(PositionRefinement(start=5), 80) == 42
    assert check_epoch(PositionRefinement(start=5, stop=11), 80) == 8
    assert check_epoch(PositionRefinement(judge=False), 10) == 0
    assert check_epoch(PositionRefinement(affine=True), 10) == 0, "the object is stretched with the positions"
    assert check_epoch(PositionRefinement(start=10), 10) == 0
