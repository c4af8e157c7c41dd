"""Held-out views whose own unknowns an operator of a user's declares: they are judged as those of the program are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from beam_tilt import BeamTilt
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES, LBFGS, LSQML, RPIE, Adam, Engine
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS
from ptymesh.physics.model import Model
from ptymesh.physics.operators import Placed
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.verdict.held_out import own_unknowns
from toy import Toy, make, share

VIEWS, LARGEST_PX = 70, 1.0
TILTED: dict[str, Any] = {"beam_tilt": True}


def moving() -> dict[str, Any]:
    """The unknowns that move; a function, as tests on other ranks register the operator late."""
    return {"object": True, "probe": True, "shift": {"lr": 0.1}}


def stage_of(engine: str, epochs: int) -> Engine:
    """A stage that moves the shifts."""
    if engine == "adam":
        return Adam(epochs=epochs, batch=10, lr=0.005, unknowns=moving())
    return ENGINES[engine](epochs=epochs, batch=10, unknowns={"shift": {"gain": 1.0}})


@pytest.fixture(scope="module", autouse=True)
def registered() -> Any:
    """The operator, as a program registers it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPTICS, "_own", {**OPTICS._own, BeamTilt.name: BeamTilt})
        yield


def tilted() -> tuple[Toy, Measurement, np.ndarray]:
    """A scan whose beam tilts from view to view, with the counts of that and the shifts (N, 2) in detector pixels."""
    toy = make(views=VIEWS, window=(24, 24), counts=2e4)
    e, every = toy.truth, torch.arange(VIEWS)
    shift = np.random.default_rng(1).uniform(-LARGEST_PX, LARGEST_PX, (VIEWS, 2))
    values = {"shift": torch.as_tensor(shift)}
    parts = e.object, e.probe, e.anchors, e.fractions(every), e.weights
    expected = with_tilt(toy).intensity(*parts, values=values).numpy()
    counts = np.random.default_rng(0).poisson(expected).astype(np.uint16)
    return toy, replace(toy.measurement, patterns=ArraySource(counts)), shift


def with_tilt(toy: Toy) -> Model:
    """The toy's model with the operator."""
    placed = Placed.of(BeamTilt(), toy.measurement.geometry, torch.complex128, "cpu")
    return replace(toy.model, operators=(placed,))


def reconstructed(optics: dict[str, Any], stage: Engine) -> pm.Reconstruction:
    """From the true object and probe, so that a few epochs tell; the shifts begin at 0."""
    toy, scan, _ = tilted()
    recon = pm.Reconstruction(scan, optics=optics, seed=1, precision="double")
    e = recon.state.estimate
    (y, x), (h, w) = (e.positions[0] - toy.truth.positions[0]).round().long().tolist(), toy.truth.extent
    e.object[:, y : y + h, x : x + w] = toy.truth.object
    e.probe.copy_(toy.truth.probe)
    recon.stages = [stage]
    recon.loop(hold_out=0.1).run()
    return recon


def test_a_view_of_its_own_tilt_is_judged_at_the_noise(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Where held-out views kept the tilt of the start, the right model was called worse than the wrong one."""
    wrong = reconstructed({}, Adam(epochs=12, batch=10, lr=0.005))
    right = reconstructed(TILTED, stage_of("adam", 12))
    noise, history = right.noise_level, right.state.history
    assert noise is not None
    assert history["residual"][-1] < 1.3 * noise
    assert history["held_out"][-1] < 2 * noise, "a part is what the object has taken of the noise of the others"
    assert wrong.state.history["held_out"][-1] > 20 * noise
    e = right.state.estimate
    assert not e.others["shift"][right._held_out].any(), "judging does not change the estimate"
    at_start = right.problem.residual(e, right._held_out)[0]
    assert at_start > 20 * noise, "which is what held-out views were judged by"
    result = right.result()
    assert result.attrs["final_residual"] < 1.3 * noise
    assert result.attrs["residual_views"] == (
        "all 70 views, 7 of which no update has seen: their shift fitted on half of their pixels, and judged on the "
        "other half"
    )
    assert result.verdict == "good"
    assert (result.residuals < 3 * noise).all()
    result.save(tmp_path / "result.h5")
    assert list(Result.load(tmp_path / "result.h5").attrs["held_out_fitted"]) == ["shift"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "lsqml"])
def test_revised_waves_move_the_tilt(engine: str) -> None:
    """Errors are compared without a plane over the positions, which a defocus and a shift of the probe are as well."""
    wrong = reconstructed({}, ENGINES[engine](epochs=12, batch=10))
    right = reconstructed(TILTED, stage_of(engine, 12))
    assert right.state.history["held_out"][-1] < 0.1 * wrong.state.history["held_out"][-1]
    _, scan, shift = tilted()
    used = np.setdiff1d(np.arange(VIEWS), right._held_out)
    left = (right.state.estimate.others["shift"].numpy() - shift)[used]
    plane = np.concatenate([scan.positions[used], np.ones((len(used), 1))], axis=1)
    left -= plane @ np.linalg.lstsq(plane, left, rcond=None)[0]
    assert left.std() < 0.35 * shift.std()


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["adam", "rpie", "lsqml"])
def test_a_stopped_run_goes_on_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    _, scan, _ = tilted()
    whole = pm.Reconstruction(scan, optics=TILTED, seed=1)
    list(whole.run(stage_of(engine, 3)))
    half = pm.Reconstruction(scan, optics=TILTED, seed=1)
    half.stages = [stage_of(engine, 3)]
    next(half.loop().epochs())
    half.state.save(tmp_path, half.problem, {})
    resumed = pm.Reconstruction(scan, optics=TILTED, seed=1, saved=checkpoint.load(tmp_path))
    resumed.stages = [stage_of(engine, 3)]
    resumed.loop().run()
    found, wanted = resumed.state.estimate, whole.state.estimate
    assert torch.equal(found.others["shift"], wanted.others["shift"]) and wanted.others["shift"].any()
    assert torch.equal(found.object, wanted.object)


def by_rank(world: World, layout: str, engine: str) -> list[np.ndarray]:
    """Object, shifts, and residuals of the views used and of those held out, epoch by epoch."""
    OPTICS._own.setdefault(BeamTilt.name, BeamTilt)
    toy, toy.measurement, _ = tilted()
    toy.model = with_tilt(toy)
    problem = toy.problem(world, layout)
    start = replace(toy.truth, others={"shift": torch.zeros(VIEWS, 2, dtype=torch.float64)})
    state = RunState(share(start, problem))
    Loop(problem, state, [stage_of(engine, 2)], seed=1, hold_out=0.1).run()
    e, history = state.estimate, state.history
    found = [problem.layout.gather_whole(e.object, e), e.others["shift"]]
    return [*(one.numpy().copy() for one in found), *(np.array(history[name]) for name in ("residual", "held_out"))]


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["lsqml", "rpie", "adam"])
def test_ranks_move_and_judge_with_the_same_bits(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    (alone,) = ranks(1, by_rank, "replicated", engine)
    assert alone[1].any()
    for size in (2, 3):
        for layout in ("replicated", "tiled"):
            for found in ranks(size, by_rank, layout, engine):
                assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True)), (size, layout)


def test_the_final_residual_says_of_which_views_it_is() -> None:
    _, scan, _ = tilted()
    recon = pm.Reconstruction(scan, seed=1)
    list(recon.run(RPIE(epochs=1)))
    assert recon.result().attrs["residual_views"] == "all 70 views"
    recon = pm.Reconstruction(scan, seed=1)
    recon.stages = [RPIE(epochs=1)]
    recon.loop(hold_out=0.1).run()
    result = recon.result()
    assert result.attrs["residual_views"] == "all 70 views, 7 of which no update has seen"
    assert result.attrs["final_residual"] == recon.problem.residual(recon.state.estimate)[0], "frozen, of all"


def test_what_each_view_has_for_itself_follows_from_declarations() -> None:
    optics = BeamTilt.unknowns
    assert own_unknowns([RPIE()], optics, 0) == frozenset()
    assert own_unknowns([RPIE(positions=True), LSQML(probe={"intensity": True})], optics, 2) == {
        "positions",
        "intensity",
        "opr",
    }
    assert own_unknowns([Adam()], optics, 0) == frozenset()
    assert own_unknowns([Adam(), Adam(unknowns=moving())], optics, 0) == {"shift"}
    assert own_unknowns([LBFGS()], optics, 0) == {"shift"}
    weights = Adam(unknowns={"weights": True}, probe={"opr": False})
    assert own_unknowns([weights], optics, 0) == {"intensity"}
    assert own_unknowns([weights], optics, 1) == {"intensity", "opr"}
