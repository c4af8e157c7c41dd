"""LSQML: step lengths against a direct least-squares solution, and every option."""

import functools

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts.layout import product
from ptymesh.engines import LSQML
from ptymesh.engines.lsqml import _velocity, trimmed_mean
from ptymesh.estimate import Estimate
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative


def run(toy: Toy, engine: LSQML) -> Estimate:
    state = RunState(toy.start())
    Loop(toy.problem(), state, [engine], seed=2).run()
    return state.estimate


def test_one_view_moves_along_the_least_squares_solution() -> None:
    """One view, no damping, no shortening: P dO a + dP O b is chi's projection onto the two directions."""
    toy = make(views=3, subpixel="none")
    e, j = toy.start(), 1
    e.object.copy_(toy.truth.object.roll(2, -1))
    problem, engine = toy.problem(), LSQML(damping=0.0, step_factor=1.0, delta=0.1, trim=0.0)
    problem.begin_epoch(e)
    engine.before_epoch(problem, e)
    h, w = e.window
    y, x = e.anchors[j].tolist()
    window, probe = e.object[0, y : y + h, x : x + w].numpy().copy(), e.probe[0].numpy().copy()
    wave = np.fft.fft2(window * probe, norm="ortho")
    counts = toy.measurement.patterns.read(np.array([j]))[0]
    chi = np.fft.ifft2(np.sqrt(counts) * wave / np.abs(wave), norm="ortho") - window * probe
    kappa = problem.evaluator.illumination(e).numpy()
    d_object = probe.conj() * chi / np.hypot(kappa, 0.1 * kappa.max())[y : y + h, x : x + w]
    d_probe = window.conj() * chi
    design = np.stack([(probe * d_object).ravel(), (d_probe * window).ravel()], axis=1)
    stacked = np.concatenate([design.real, design.imag])
    (a, b), *_ = np.linalg.lstsq(stacked, np.concatenate([chi.real.ravel(), chi.imag.ravel()]), rcond=None)
    assert a > 0 and b > 0
    engine.step(problem, e, Batch(np.array([j])))
    assert relative(e.object[0, y : y + h, x : x + w], window + a * d_object) < 1e-10
    assert relative(e.probe[0], probe + b * d_probe) < 1e-10


OPTIONS = {
    "delta": 0.5,
    "damping": 0.9,
    "step_factor": 0.5,
    "trim": 0.6,
    "coupled": False,
    "step_modes": "first",
    "probe_direction": "weighted",
    "order": "compact",
    "fidelity": "poisson",
    "momentum": {"memory": 1},
}


@functools.cache
def unchanged_object() -> torch.Tensor:
    """Return the object that every changed option is compared with."""
    return run(make(views=40, modes=2, noise=True), LSQML(epochs=5, batch=10)).object


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_matters_and_converges(name: str) -> None:
    toy = make(views=40, modes=2, noise=True)
    changed = run(toy, LSQML(epochs=5, batch=10, **{name: OPTIONS[name]}))
    assert relative(changed.object, unchanged_object()) > 1e-4
    problem = toy.problem()
    assert problem.residual(changed)[0] < problem.residual(toy.start())[0] / 2


@pytest.mark.parametrize("options", [{"gain": 1.0}, {"memory": 2}, {"start": 4}])
def test_momentum_s_options_matter(options: dict) -> None:
    toy = make(views=40)
    base = run(toy, LSQML(epochs=6, batch=10, momentum={"memory": 1}))
    assert relative(run(toy, LSQML(epochs=6, batch=10, momentum={"memory": 1, **options})).object, base.object) > 1e-6


def test_momentum_speeds_up() -> None:
    toy = make(views=40, counts=1e5)
    problem = toy.problem()
    plain, fast = (run(toy, LSQML(epochs=25, batch=10, momentum=m)) for m in (False, True))
    assert problem.residual(fast)[0] < problem.residual(plain)[0]


def test_frozen_probe_leaves_the_object_its_own_step() -> None:
    toy = make(views=40)
    before, _ = toy.problem().residual(toy.start(probe_error=0))
    state = RunState(toy.start(probe_error=0))
    Loop(toy.problem(), state, [LSQML(epochs=10, batch=10, probe={"frozen": 10})]).run()
    assert torch.equal(state.estimate.probe, toy.truth.probe)
    assert toy.problem().residual(state.estimate)[0] < before / 10


def test_trimmed_mean() -> None:
    values = torch.tensor([100.0, *range(1, 20)])
    assert float(trimmed_mean(values, 0.1)) == pytest.approx(sum(range(2, 20)) / 18)
    assert float(trimmed_mean(values, 0.0)) == pytest.approx(float(values.mean()))


def test_velocity_follows_updates_that_agree_and_is_halved_by_others() -> None:
    """v = (1 - friction) v + U, the friction a tenth of the slope of the logarithm of correlations of 1, 1/2, 1/4."""
    e = torch.eye(3, dtype=torch.complex128)
    first = e[0] / 4 + e[1] * (1 - 1 / 16) ** 0.5
    second = e[0] / 2 + e[2] * (1 - 1 / 4) ** 0.5
    state: dict[str, torch.Tensor] = {}

    def follow(update: torch.Tensor, on: bool = True) -> torch.Tensor | None:
        return _velocity(state, "probe_", update.clone(), 2, on, lambda a, b: total_of(product(a, b)))

    assert follow(first, on=False) is None and follow(second, on=False) is None
    velocity = follow(e[0])
    assert velocity is not None and relative(velocity, e[0]) < 1e-12, "the first that is followed is the update"
    assert follow(e[0], on=False) is None
    assert relative(state["probe_velocity"], e[0] / 2) < 1e-12
    assert follow(-e[0]) is None and relative(state["probe_velocity"], e[0] / 4) < 1e-12
    state["probe_update1"], state["probe_update2"] = second, first
    velocity = follow(e[0])
    assert velocity is not None
    assert relative(velocity, (1 - 0.1 * np.log(2)) * e[0] / 4 + e[0]) < 1e-12


def test_momentum_carries_a_slow_probe_on_where_the_object_s_gate_is_closed() -> None:
    """With small random batches the object's updates oppose each other, and the probe's point the same way."""
    toy = make(views=40, counts=1e5)
    problem = toy.problem()
    state = RunState(toy.start())
    engine = LSQML(epochs=25, batch=10, momentum=True)
    Loop(problem, state, [engine], seed=2).run()
    plain = run(toy, LSQML(epochs=25, batch=10))
    assert float(engine.state["probe_velocity"].abs().max()) > 0
    assert problem.residual(state.estimate)[0] < 0.9 * problem.residual(plain)[0]
