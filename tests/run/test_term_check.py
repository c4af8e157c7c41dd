"""Terms of geometry and lens stay where short runs with them explain held-out views better, and go back elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import LSQML, Engine
from ptymesh.errors import BadInput, Diverged, Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.models import MODELS
from ptymesh.models.scan_geometry import matrix_of
from ptymesh.physics.beam import probes
from ptymesh.run.checkpoint_counters import counters_of
from ptymesh.simulate import patterns, simulate
from ptymesh.verdict.term_trial import TermCheck, judge_terms, needs_term_check, put_back, stage_of_trial
from toy import make

EPOCHS, BATCH = 8, 16


@cache
def turned_scan() -> pm.Measurement:
    """A scan whose positions are told turned by 2 degrees, and right otherwise."""
    scan = simulate(
        kind="xray", views=64, window=32, probe_guess="true", seed=3, overlap=0.7, photons_per_view=1e5
    ).measurement
    middle, turn = scan.positions.mean(axis=0), matrix_of({"rotation": math.radians(2)})
    return replace(scan, positions=(scan.positions - middle) @ turn.T + middle)


def outcome(world: World, layout: str, folder: Path | None = None, stop: int = 0) -> Any:
    """What one rank ends with: a run from the start, which stops after so many batches, or one from a checkpoint."""
    saved = checkpoint.load(folder, world) if folder and not stop else None
    recon = pm.Reconstruction(turned_scan(), device=world, layout=layout, seed=1, saved=saved)  # type: ignore[arg-type]
    geometry = {"terms": ["rotation", "scale"], "judge": True}
    recon.stages = [LSQML(epochs=EPOCHS, batch=BATCH, models={"scan_geometry": geometry})]  # type: ignore[dict-item]
    left = iter(range(stop or 1 << 30))
    loop = recon.loop(stop=lambda: next(left, None) is None)
    if folder:
        loop.save = lambda: recon.state.save(folder, loop.problem, {"data": recon.identity()})
    if stop:
        with pytest.raises(Interrupted):
            loop.run()
        return None
    notes = [report.note for report in loop.epochs() if report.note]
    e = recon.state.estimate
    whole = recon.problem.layout.gather_whole(e.object, e).numpy()
    checks = recon.result().attrs["term_checks"]
    return whole, e.positions.numpy(), e.nominal.numpy(), e.parameters["scan_geometry"], notes, checks


@cache
def alone() -> Any:
    """What a single rank ends with."""
    return outcome(Solo(), "replicated")


def same(one: Any, other: Any) -> None:
    for a, b in zip(one[:3], other[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert one[3] == other[3]


def test_a_term_that_helps_goes_on_and_another_one_goes_back() -> None:
    *_, numbers, notes, checks = alone()
    (note,) = notes
    assert "scan_geometry.rotation helps (held-out pixels by +" in note
    assert "scan_geometry.scale was put back after epoch 4, as it does not help" in note
    assert numbers["scale"] == 0 and -3 < math.degrees(numbers["rotation"]) < -1
    assert "; ".join(checks) == note


@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "layout"), [(2, "replicated"), (3, "tiled")])
def test_ranks_and_layouts_judge_with_the_same_bits(ranks: Any, size: int, layout: str) -> None:
    for other in ranks(size, outcome, layout):
        same(alone(), other)


def test_a_run_that_goes_on_remembers_what_was_judged(ranks: Any, tmp_path: Path) -> None:
    ranks(2, outcome, "tiled", tmp_path, 4 * 4 + 1)
    found = counters_of(checkpoint.load(tmp_path, Solo()).meta).term_checks
    assert [(one.term, one.is_refused, one.epochs) for one in found] == [("rotation", False, 4), ("scale", True, 4)]
    same(alone(), outcome(Solo(), "replicated", tmp_path))


def test_an_astigmatism_that_is_not_there_goes_back() -> None:
    """Beside a defocus that was told 20 % wrong."""
    made = simulate(kind="electron", slices=1, views=64, window=48, seed=1, overlap=0.75, photons_per_view=1e5).truth
    pixel, wavelength = made.geometry.object_pixel_m, made.geometry.wavelength_m
    assert pixel is not None and wavelength is not None
    angle = 0.35 * wavelength / (2 * pixel[0])
    true = -0.3 * 48 * pixel[0] / (2 * angle)
    probe = probes.aberrated(made.geometry.shape, pixel, wavelength, angle, {"C10": true})[None]
    made = replace(made, probe=probes.rescaled(probe, float((np.abs(made.probe) ** 2).sum())).numpy())
    scan = made.measurement(np.concatenate(list(patterns(made))))
    start = {"kind": "electron", "semiangle_rad": angle, "aberrations_m": {"C10": 0.8 * true}}
    recon = pm.Reconstruction(scan, device="cpu", probe={"start": start})
    lens = {"terms": ["C10", "C12"], "judge": True}
    list(recon.run({"engine": "lsqml", "epochs": 10, "batch": 16, "models": {"aberrations": lens}}))
    assert {check.term: check.is_refused for check in recon.state.term_checks} == {"C10": False, "C12": True}
    numbers = recon.state.estimate.parameters["aberrations"]
    assert numbers["C12a"] == numbers["C12b"] == 0 and abs(numbers["C10"] / true - 1) < 0.05


def test_terms_go_back_with_what_follows_from_them() -> None:
    toy = make()
    geometry, e = toy.problem().geometry, toy.start()
    model = MODELS["scan_geometry"]()
    theta = torch.tensor([0.02, 0.01, -0.01, 0.005], dtype=torch.float64)
    first = e.positions.clone()
    for x in (e.positions, e.nominal):
        x.copy_(model.moved(geometry, e, x, 0 * theta, theta))
    e.parameters["scan_geometry"] = dict(zip(model.units(), theta.tolist(), strict=True))
    whole = put_back(geometry, e, model, ["rotation", "scale", "aspect", "shear"])
    assert torch.allclose(whole.positions, first, rtol=0, atol=1e-12)
    one = put_back(geometry, e, model, ["scale"])
    assert one.parameters["scan_geometry"] == {**e.parameters["scan_geometry"], "scale": 0.0}
    assert not torch.allclose(one.positions, e.positions) and not torch.allclose(one.positions, first)
    assert e.parameters["scan_geometry"]["scale"] == 0.01, "the estimate stays as it is"


def test_terms_are_judged_halfway() -> None:
    def epochs_of(engine: Engine) -> list[int]:
        (model,) = engine.models.values()
        return [epoch for epoch in range(1, engine.epochs + 1) if needs_term_check(model, engine, epoch)]

    judged = {"scan_geometry": {"judge": True}}
    assert epochs_of(LSQML(epochs=10, models=judged)) == [5]  # type: ignore[arg-type]
    assert epochs_of(LSQML(epochs=10, models={"scan_geometry": True})) == []  # type: ignore[dict-item]
    late = {"scan_geometry": {"judge": True, "start": 5, "stop": 9}}
    assert epochs_of(LSQML(epochs=80, models=late)) == [7]  # type: ignore[arg-type]
    assert epochs_of(LSQML(epochs=80, coarsen=2, models=judged)) == []  # type: ignore[arg-type]
    assert epochs_of(LSQML(epochs=1, models=judged)) == []  # type: ignore[arg-type]


def test_short_runs_that_fail_judge_nothing() -> None:
    recon = pm.Reconstruction(turned_scan(), device="cpu")
    model, engine = MODELS["scan_geometry"](), LSQML(epochs=10)

    def fail(*_: Any) -> Any:
        raise Diverged("no")

    assert judge_terms(recon.scan, fail, recon.state.estimate, model, engine, 1) == []
    whole = LSQML(epochs=99, positions=True, models={"scan_geometry": True})  # type: ignore[dict-item]
    frozen = [stage_of_trial(whole, MODELS[name]()).probe.frozen for name in ("scan_geometry", "aberrations")]
    trial = stage_of_trial(whole, model)
    assert (trial.epochs, trial.positions, trial.models, frozen) == (25, None, {}, [0, 25])


def test_gains_within_chance_are_refused() -> None:
    assert TermCheck(4, "scan_geometry", "scale", 0.01, 1.9).is_refused
    assert not TermCheck(4, "scan_geometry", "scale", 0.001, 2.1).is_refused
    with pytest.raises(BadInput, match="judge is of numbers by which alone the probe moves"):
        LSQML(models={"aberrations": {"residue": True, "judge": True}})  # type: ignore[dict-item]
