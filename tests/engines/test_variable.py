"""Variable beams: per-view intensities, and OPR modes for a probe that drifts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ptymesh.compare import object_error
from ptymesh.engines import LSQML, RPIE, Engine, variable
from ptymesh.engines.constraints.neighbours import smoothed_in_time
from ptymesh.errors import Diverged
from ptymesh.estimate import Estimate
from ptymesh.measurement import ArraySource
from ptymesh.physics.beam.probes import extra_modes
from ptymesh.physics.model import Model
from ptymesh.problem import Batch, ViewUpdates
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from toy import Toy, make, relative


def charted(views: int, photons: float = 1e6) -> Toy:
    """The simulated test chart, well overlapped."""
    made = simulate(kind="xray", views=views, window=48, seed=2, photons_per_view=photons, overlap=0.8)
    return Toy(
        made.measurement,
        Model.for_geometry(made.measurement.geometry, dtype=torch.complex128),
        made.truth.estimate(torch.complex128),
    )


def drifting(views: int = 120, photons: float = 1e6) -> Toy:
    """A scan whose probe changes shape steadily from the first view to the last."""
    toy = charted(views, photons)
    truth = toy.truth
    time = torch.linspace(-1, 1, views, dtype=torch.float64)
    opr = extra_modes(truth.probe[0], 3, [1 / 3] * 3, 0)[1:]
    opr = opr / torch.linalg.vector_norm(opr, dim=(-2, -1), keepdim=True) * torch.linalg.vector_norm(truth.probe[0])
    weights = torch.stack((torch.ones_like(time), 0.3 * time, 0.15 * time**2), dim=1)
    return measured(toy, replace(truth, opr=opr, weights=weights))


def measured(toy: Toy, truth: Estimate) -> Toy:
    """The same scan of another truth, with Poisson noise."""
    every = torch.arange(len(truth.positions))
    counts = toy.model.intensity(
        truth.object, truth.probe, truth.anchors, truth.fractions(every), truth.weights, truth.background, truth.opr
    )
    noisy = np.random.default_rng(0).poisson(counts.numpy()).astype(np.uint32)
    return Toy(replace(toy.measurement, patterns=ArraySource(noisy)), toy.model, truth)


def start(toy: Toy, modes: int) -> Estimate:
    e = toy.start(probe_error=0.0)
    guess = extra_modes(e.probe[0], modes + 1, [1 / (modes + 1)] * (modes + 1), 1)[1:]
    scale = torch.linalg.vector_norm(e.probe[0]) / torch.linalg.vector_norm(guess, dim=(-2, -1), keepdim=True)
    weights = torch.cat((torch.ones(len(e.positions), 1), torch.zeros(len(e.positions), modes)), dim=1)
    return replace(e, opr=(guess * scale).to(e.probe.dtype), weights=weights.to(torch.float64))


def error_of(toy: Toy, e: Estimate) -> float:
    """NRMSE of the object after removing phase, scale, ramp and shift."""
    lit = toy.problem().evaluator.illumination(toy.truth)
    return object_error(e.object[0].numpy(), toy.truth.object[0].numpy(), (lit > 0.2 * lit.max()).numpy())


def run(toy: Toy, engine: Engine, modes: int) -> Estimate:
    state = RunState(start(toy, modes))
    Loop(toy.problem(), state, [engine]).run()
    return state.estimate


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", [RPIE, pytest.param(LSQML, marks=pytest.mark.long)])
def test_opr_follows_a_drifting_probe(engine: type[Engine]) -> None:
    """The excess of the residual over the true model's falls at least 5 times, the object's error 2 times."""
    toy = drifting()
    problem = toy.problem()
    floor, _ = problem.residual(toy.truth)
    without = run(toy, engine(epochs=25, batch=12), 0)
    with_ = run(toy, engine(epochs=25, batch=12, probe={"opr": {"start": 5}}), 2)
    excess = [problem.residual(e)[0] - floor for e in (without, with_)]
    errors = [error_of(toy, e) for e in (without, with_)]
    assert excess[1] < excess[0] / 5
    assert errors[1] < errors[0] / 2


def roughness(e: Estimate) -> float:
    """Part of the shares' power that is no parabola in time."""
    time = torch.linspace(-1, 1, len(e.weights), dtype=torch.float64)
    curves = torch.stack((torch.ones_like(time), time, time**2), dim=1)
    left = e.weights[:, 1:] - curves @ torch.linalg.lstsq(curves, e.weights[:, 1:]).solution
    return float(left.square().sum() / e.weights[:, 1:].square().sum())


def test_smooth_shares_are_nearer_to_those_of_a_beam_that_drifts() -> None:
    toy = drifting(views=60, photons=300)
    rough, smooth = (
        run(toy, RPIE(epochs=10, batch=12, probe={"opr": {"start": 3, "smooth_views": views}}), 2) for views in (0, 4)
    )
    assert roughness(smooth) < 0.2 * roughness(rough)


def test_smoothing_in_time_takes_known_views_of_the_same_scan() -> None:
    shares = torch.tensor([[1.0], [1.0], [9.0], [1.0], [1.0]], dtype=torch.float64)
    known = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.allclose(smoothed_in_time(shares, known, 1.0), torch.ones_like(shares))
    impulse = torch.zeros(41, 1, dtype=torch.float64)
    impulse[20] = 1
    found = smoothed_in_time(impulse, torch.ones(41, dtype=torch.float64), 3.0)[:, 0]
    place = torch.arange(41) - 20
    assert float(found.sum()) == pytest.approx(1, abs=1e-3)
    assert float((found * place**2).sum()) ** 0.5 == pytest.approx(3.0, rel=0.01)
    assert torch.equal(smoothed_in_time(impulse, torch.zeros(41, dtype=torch.float64), 3.0), impulse)


def test_intensities_are_found() -> None:
    toy = charted(60)
    weights = 1 + 0.2 * torch.rand(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    toy = measured(toy, replace(toy.truth, weights=weights))
    state = RunState(start(toy, 0))
    Loop(toy.problem(), state, [RPIE(epochs=40, batch=10, probe={"intensity": True})]).run()
    found, truth = state.estimate.weights[:, 0], toy.truth.weights[:, 0]
    assert relative(found, truth / truth.mean()) < 0.02
    assert float(found.mean()) == pytest.approx(1)


def test_gauges_keep_every_probe() -> None:
    toy = drifting(views=20)
    e = replace(toy.truth, weights=toy.truth.weights * torch.tensor([1.3, 1, 1]), probe=toy.truth.probe.clone())
    every = torch.arange(20)

    def probes(e: Estimate) -> torch.Tensor:
        return toy.model.probes(e.probe, e.fractions(every), e.weights, e.opr)

    before = probes(e)
    variable.after_epoch(toy.problem(), e)
    # the mean of w_j0 goes into the probe, and with it the size of all shares: nothing else changes
    assert relative(probes(e), before) < 1e-12
    flat = e.opr.reshape(2, -1)
    shares = e.weights[:, 1:]
    assert abs(float(shares.T[0] @ shares[:, 1])) < 1e-9 and abs(float(shares.mean())) < 1e-9
    assert torch.allclose(torch.linalg.vector_norm(flat, dim=1), torch.linalg.vector_norm(e.probe[0]).expand(2))


def test_schedules() -> None:
    toy = drifting(views=20)
    e = start(toy, 2)
    upkeep = RPIE(probe={"frozen": 2, "opr": {"start": 4}}).probe
    assert [variable.due(upkeep, e, epoch) for epoch in range(1, 6)] == [False, False, False, True, True]
    assert not variable.due(upkeep, start(toy, 0), 5)
    assert not variable.due(RPIE(probe={"opr": False}).probe, e, 5)
    assert variable.due(RPIE(probe={"intensity": {"start": 2}}).probe, start(toy, 0), 2)


def test_gain_matters() -> None:
    toy = drifting(views=30)
    slow, fast = (run(toy, RPIE(epochs=2, batch=10, probe={"opr": {"gain": g}}), 1) for g in (0.1, 0.9))
    assert relative(slow.weights[:, 1:], fast.weights[:, 1:]) > 0.1


def test_modes_that_are_not_finite_end_the_run_in_a_sentence() -> None:
    modes = torch.full((2, 4, 4), torch.nan, dtype=torch.complex64)
    with pytest.raises(Diverged, match="modes or their shares are not finite"):
        variable.orthogonal(torch.ones(3, 2), modes, torch.ones(4, 4, dtype=torch.complex64))


def test_what_intensities_of_a_batch_ask_for_in_common_is_left_to_the_probe() -> None:
    toy = make(views=20)
    problem, e = toy.problem(), toy.start()
    before = e.weights.clone()
    steps = torch.linspace(0.1, 0.3, 20, dtype=torch.float64)[:, None]
    given = RPIE(probe={"intensity": {"gain": 0.5}}).probe
    two = [(torch.arange(8), steps[:8]), (torch.arange(8, 20), steps[8:])]
    variable.after_batch(given, problem, Batch(np.arange(20), view_updates=ViewUpdates(weights=two)), e)
    assert torch.allclose(e.weights - before, 0.5 * (steps - 0.2))
    alone = Batch(np.arange(1), view_updates=ViewUpdates(weights=[(torch.arange(1), steps[:1])]))
    moved = e.weights.clone()
    variable.after_batch(given, problem, alone, e)
    assert torch.allclose(e.weights[0] - moved[0], 0.5 * steps[0]), "a view alone has no mean but its own"
