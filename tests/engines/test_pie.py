"""ePIE, rPIE and mPIE against literal transcriptions, and on phantoms with known truth."""

import numpy as np
import pytest
import torch

from ptymesh import problem
from ptymesh.engines import EPIE, MPIE, RPIE, Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.blocks import cut_blocks
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from toy import Toy, make, relative


def run(toy: Toy, engine: Engine, start: Estimate, seed: int = 0) -> RunState:
    state = RunState(start)
    Loop(toy.problem(), state, [engine], seed=seed).run()
    return state


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", [EPIE, RPIE, MPIE])
def test_several_slices_share_the_step(engine: type[Engine]) -> None:
    """Each with a whole step, four slices go four times too far, and diverge."""
    scan = simulate(kind="electron", views=100, window=32, seed=11, slices=4)
    recon = Reconstruction(scan.measurement, object={"slices": 4, "slice_spacing_m": scan.truth.slice_spacing_m})
    losses = [report.loss for report in recon.run(engine(batch=32), epochs=10)]
    assert losses[-1] < 0.5 * losses[0]


def literal_rpie(toy: Toy, e: Estimate, order: range, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Maiden, Johnson & Li (2017), one view at a time, whole-pixel positions, object and probe from the same wave."""
    obj, probe = e.object[0].numpy().copy(), e.probe[0].numpy().copy()
    h, w = e.window
    for j in order:
        y, x = e.anchors[j].tolist()
        window = obj[y : y + h, x : x + w].copy()
        psi = window * probe
        wave = np.fft.fft2(psi, norm="ortho")
        measured = toy.measurement.patterns.read(np.array([j]))[0]
        revised = np.fft.ifft2(np.sqrt(measured) * wave / np.abs(wave), norm="ortho")
        chi = revised - psi
        p2, o2 = np.abs(probe) ** 2, np.abs(window) ** 2
        obj[y : y + h, x : x + w] += probe.conj() * chi / ((1 - alpha) * p2 + alpha * p2.max())
        probe = probe + window.conj() * chi / ((1 - beta) * o2 + beta * o2.max())
    return obj, probe


@pytest.mark.parametrize(
    ("engine", "alpha", "beta"), [(RPIE(alpha=0.1, beta=0.7), 0.1, 0.7), (EPIE(), 1.0, 1.0)], ids=["rpie", "epie"]
)
def test_batches_of_one_are_the_paper(engine: Engine, alpha: float, beta: float) -> None:
    toy = make(subpixel="none", views=10)
    start = toy.start()
    expected = literal_rpie(toy, start, range(10), alpha, beta)
    seen = toy.problem()
    seen.begin_epoch(start)
    for j in range(10):
        engine.step(seen, start, Batch(np.array([j])))
    assert relative(start.object[0], expected[0]) < 1e-12
    assert relative(start.probe[0], expected[1]) < 1e-12


@pytest.mark.sample(4)
@pytest.mark.parametrize("engine", [EPIE, RPIE, MPIE])
@pytest.mark.parametrize(
    "case",
    [
        dict(),
        dict(modes=2, background=1.0, varying=True),
        dict(subpixel="bilinear"),
        dict(propagation="angular_spectrum"),
        dict(fidelity="poisson"),
        dict(slices=2, views=120),
    ],
    ids=lambda case: "-".join(f"{v}" for v in case.values()) or "plain",
)
def test_phantom(engine: type[Engine], case: dict) -> None:
    """From an object of ones and a disturbed probe the residual falls by a stated factor."""
    toy = make(**{"views": 60, "counts": 1e5, **case})
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, engine(epochs=30, batch=10, fidelity=toy.model.fidelity), start)
    after, _ = toy.problem().residual(state.estimate)
    assert after < before / 20


def test_known_probe_gives_the_object() -> None:
    toy = make(views=80, counts=1e6)
    state = run(toy, RPIE(epochs=60, batch=8, alpha=0.1, probe={"frozen": 60}), toy.start(probe_error=0))
    lit = toy.problem().evaluator.illumination(toy.truth)
    seen = lit > 0.2 * lit.max()
    found, truth = state.estimate.object[0][seen], toy.truth.object[0][seen]
    found = found * torch.exp(-1j * torch.angle((truth.conj() * found).sum()))
    assert relative(found, truth) < 0.1
    assert torch.equal(state.estimate.probe, toy.truth.probe)


@pytest.mark.parametrize(
    "engine", [RPIE(epochs=2, batch=8, beta=0.01, probe={"frozen": 2}), EPIE(epochs=2, probe={"frozen": 2})]
)
def test_a_frozen_probe_stays_in_single_precision(engine: Engine) -> None:
    toy = make(views=20, dtype=torch.complex64)
    start = toy.start()
    state = run(toy, engine, start)
    assert torch.equal(state.estimate.probe, toy.start().probe)
    assert not torch.equal(state.estimate.object, toy.start().object)


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 7, 40, 64])
def test_any_batch_size_converges(batch: int) -> None:
    toy = make()
    state = run(toy, RPIE(epochs=20, batch=batch), toy.start())
    history = state.history["residual"]
    assert history[-1] < history[0] / 3


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make(modes=2)
    whole = run(toy, RPIE(epochs=2, batch=16), toy.start()).estimate
    monkeypatch.setitem(problem.CHUNK_BYTES, "cpu", 3 * 2 * 24 * 28 * 16)
    parts = run(toy, RPIE(epochs=2, batch=16), toy.start()).estimate
    assert relative(parts.object, whole.object) < 1e-13 and relative(parts.probe, whole.probe) < 1e-13


OPTIONS = {
    "alpha": RPIE(alpha=0.2),
    "beta": RPIE(beta=0.2),
    "gamma_object": RPIE(gamma_object=0.5),
    "gamma_probe": RPIE(gamma_probe=0.5),
    "batch": RPIE(batch=20),
    "fidelity": RPIE(fidelity="poisson"),
    "momentum_every": MPIE(momentum_every=3),
    "eta_object": MPIE(momentum_every=3, eta_object=0.2),
    "eta_probe": MPIE(momentum_every=3, eta_probe=0.2),
    "epie gamma_object": EPIE(gamma_object=0.5),
    "epie gamma_probe": EPIE(gamma_probe=0.5),
}


DEFAULTS = {
    "alpha": 0.5,
    "beta": 0.5,
    "batch": 10,
    "fidelity": "amplitude",
    "momentum_every": 9,
    "eta_object": 0.7,
    "eta_probe": 0.7,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_matters(name: str) -> None:
    toy = make(views=30, noise=True)
    engine = OPTIONS[name]
    changes = {"epochs": 3, "batch": 10, **engine.model_dump(exclude_defaults=True)}
    changed = run(toy, type(engine)(**changes), toy.start()).estimate
    option = name.split()[-1]
    plain = run(toy, type(engine)(**{**changes, option: DEFAULTS.get(option, 1.0)}), toy.start()).estimate
    assert relative(changed.object, plain.object) > 1e-6 or relative(changed.probe, plain.probe) > 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(alpha=0), "alpha"),
        (dict(alfa=0.5), "alfa"),
        (dict(epochs=0), "epochs"),
        (dict(batch=-1), "batch"),
        (dict(positions={"start": 5, "stop": 2}), "before start"),
        (dict(object={"amplitude": {}}), "low, high"),
        (dict(object={"amplitude": {"low": 2, "high": 1}}), "above high"),
        (dict(object={"scale": True}, probe={"power": True}), "same gauge"),
    ],
)
def test_options_are_checked(options: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        RPIE(**options)


@pytest.mark.parametrize("blend", [0.3, 1.0])
def test_what_is_added_may_be_weighted(blend: float) -> None:
    toy = make(views=12, blocks=4)
    seen, e = toy.problem(), toy.start()
    seen.begin_epoch(e)
    s = seen.gradients(e, Batch(np.arange(12)))
    divisor = (1 - blend) * s.probe_weight + blend * s.probe_weight.max()
    probe, obj = e.probe.clone(), torch.zeros_like(e.object)
    seen.fields.add_weighted(probe, s.probe, s.probe_weight, blend=blend, times=0.3)
    torch.testing.assert_close(probe, e.probe + 0.3 * s.probe / divisor)
    seen.fields.add_weighted(obj, s.object, s.object_weight, blend=blend, times=0.3)
    weight = s.object_weight.values
    by_blocks = 0.3 * s.object.values / ((1 - blend) * weight + blend * weight.max())
    assert by_blocks.abs().max() > 0
    torch.testing.assert_close(cut_blocks(obj, s.object.rows, s.object.columns), by_blocks)
