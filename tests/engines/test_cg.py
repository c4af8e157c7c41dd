"""Conjugate gradient: against a transcription, its line search, and phantoms with known truth."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from descents import FEATURES, check_resume, loss, named, position_error, run
from ptymesh.engines import CG
from ptymesh.engines.descent import LADDER, Move, lowest
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.problem import Batch
from toy import Toy, make, relative

# --- against a transcription ---


def literal_cg(toy: Toy, e: Estimate, steps: int, delta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Polak-Ribiere with derivatives from autograd, whole-pixel positions, amplitude, and the engine's ladder."""
    obj, probe = e.object.clone(), e.probe.clone()
    counts = torch.as_tensor(toy.measurement.patterns.read(np.arange(len(e.positions))))
    (h, w), anchors = e.window, e.anchors.tolist()

    def misfit(obj: torch.Tensor, probe: torch.Tensor) -> torch.Tensor:
        windows = torch.stack([obj[0, y : y + h, x : x + w] for y, x in anchors])
        wave = torch.fft.fft2(windows * probe, norm="ortho")
        return ((wave.abs() - counts.sqrt()) ** 2).sum()

    def weights(obj: torch.Tensor, probe: torch.Tensor) -> list[torch.Tensor]:
        lit, seen = torch.zeros_like(obj.real), torch.zeros_like(probe.real)
        for y, x in anchors:
            lit[0, y : y + h, x : x + w] += probe[0].abs() ** 2
            seen[0] += obj[0, y : y + h, x : x + w].abs() ** 2
        return [(v**2 + (delta * v.max()) ** 2).sqrt() for v in (lit, seen)]

    before: dict = {}
    for _ in range(steps):
        x = [v.clone().requires_grad_() for v in (obj, probe)]
        # autograd's gradient is twice that with respect to the conjugate
        s = [-g / 2 for g in torch.autograd.grad(misfit(*x), x)]
        z = [a / b for a, b in zip(s, weights(obj, probe), strict=True)]
        dot = lambda a, b: sum(float((p.conj() * q).real.sum()) for p, q in zip(a, b, strict=True))  # noqa: E731
        d = z
        if before:
            beta = max(0.0, (dot(z, s) - dot(z, before["s"])) / before["zs"])
            d = [a + beta * b for a, b in zip(z, before["d"], strict=True)]
        losses = torch.stack([misfit(obj + t * d[0], probe + t * d[1]) for t in (0, *LADDER)])
        t = float(lowest(torch.tensor((0, *LADDER), dtype=torch.float64), losses))
        obj, probe = obj + t * d[0], probe + t * d[1]
        before = {"s": s, "zs": dot(z, s), "d": d}
    return obj, probe


def test_all_views_are_the_textbook() -> None:
    toy = make(subpixel="none", views=20)
    start = toy.start()
    expected = literal_cg(toy, start, 5, 0.2)
    state = run(toy, CG(epochs=5, delta=0.2), start)
    assert relative(state.estimate.object, expected[0]) < 1e-10
    assert relative(state.estimate.probe, expected[1]) < 1e-10


# --- line search ---


def test_parabola() -> None:
    steps = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    assert float(lowest(steps, (steps - 1.3) ** 2)) == pytest.approx(1.3)
    assert float(lowest(steps, steps)) == 0
    assert float(lowest(steps, -steps)) == 4
    assert float(lowest(steps, torch.tensor([2.0, 1.0, 0.5, torch.inf, torch.inf]))) == 1
    assert float(lowest(steps, torch.tensor([1.0, 1, 1, 1, 1]))) == 0


@pytest.mark.parametrize("case", FEATURES, ids=named)
def test_search_finds_the_least_loss_along_the_line(case: dict) -> None:
    toy = make(**{"views": 30, **case})
    problem, e = toy.problem(), toy.start()
    problem.begin_epoch(e)
    batch, engine = Batch(np.arange(20)), CG()
    _, z = engine.downhill(problem, e, batch)
    d = Move(z.object, z.probe)
    t = float(engine.search(problem, e, batch, d))

    def along(t: float) -> float:
        moved = replace(e, object=e.object.clone(), probe=e.probe + t * d.probe)
        problem.fields.add(moved.object, t * d.object)
        return loss(problem, moved, batch.views)

    here = along(0)
    assert t > 0 and along(t) < here
    finer = min(along(s) for s in np.geomspace(1 / 32, 8, 60))
    assert along(t) - finer < 0.02 * (here - finer)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["amplitude", "poisson", "intensity"])
def test_the_loss_never_rises(kind: str) -> None:
    toy = make(fidelity=kind, noise=True)
    state = run(toy, CG(epochs=25, fidelity=kind), toy.start())
    history = np.array(state.history["loss"])
    assert (np.diff(history) <= 0).all() and history[-1] < history[0]


def test_no_way_down_starts_again_from_the_gradient() -> None:
    toy = make(views=20)
    problem, e, engine = toy.problem(), toy.start(), CG()
    problem.begin_epoch(e)
    batch = Batch(np.arange(20))
    engine.step(problem, e, batch)
    # a remembered direction, downhill, but so long that every step of the ladder leads too far
    s, z = engine.downhill(problem, e, batch)
    far = torch.tensor(1e6, dtype=torch.float64)
    engine.remember("direction", problem, e, z.times(far))
    engine.remember("slope", problem, e, s.times(0 * far))
    before = e.object.clone()
    engine.step(problem, e, batch)
    assert torch.equal(e.object, before) and "object_direction" not in engine.state
    engine.step(problem, e, batch)
    assert not torch.equal(e.object, before)


def test_batches_of_different_views_go_along_the_gradient() -> None:
    toy = make(views=30)
    problem, engine = toy.problem(), CG()
    e = toy.start()
    problem.begin_epoch(e)
    engine.step(problem, e, Batch(np.arange(0, 30, 2)))
    assert torch.equal(engine.state["views"], torch.arange(0, 30, 2))
    _, z = engine.downhill(problem, e, Batch(np.arange(1, 30, 2)))
    engine.step(problem, e, Batch(np.arange(1, 30, 2)))
    assert torch.equal(problem.fields.touched(engine.state["object_direction"], z.object).values, z.object.values)


# --- phantoms ---


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", FEATURES, ids=named)
def test_phantom(case: dict) -> None:
    toy = make(**{"views": 60, "counts": 1e5, **case})
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, CG(epochs=30, fidelity=toy.model.fidelity), start)
    after, _ = toy.problem().residual(state.estimate)
    assert after < before / 100


def test_known_probe_gives_the_object() -> None:
    toy = make(views=80, counts=1e6)
    state = run(toy, CG(epochs=50, probe={"frozen": 50}), toy.start(probe_error=0))
    lit = toy.problem().evaluator.illumination(toy.truth)
    seen = lit > 0.2 * lit.max()
    found, truth = state.estimate.object[0][seen], toy.truth.object[0][seen]
    found = found * torch.exp(-1j * torch.angle((truth.conj() * found).sum()))
    assert relative(found, truth) < 0.03
    assert torch.equal(state.estimate.probe, toy.truth.probe)


def test_positions() -> None:
    toy = make(views=80, counts=1e6)
    start = toy.start(probe_error=0.05, position_error=0.5)
    state = run(toy, CG(epochs=60, positions={"start": 15}), start)
    assert position_error(toy, state.estimate) < position_error(toy, toy.start(position_error=0.5)) / 3


def test_masked_pixels_do_not_count() -> None:
    toy = make(views=30)
    toy.measurement.mask[:, 5] = False
    clean = run(toy, CG(epochs=4), toy.start()).estimate.object
    counts = toy.measurement.patterns.read(np.arange(30)).copy()
    counts[:, :, 5] = 1e9
    spoiled = Toy(Measurement(**{**vars(toy.measurement), "patterns": ArraySource(counts)}), toy.model, toy.truth)
    assert torch.equal(run(spoiled, CG(epochs=4), toy.start()).estimate.object, clean)


# --- options, memory ---


CHANGES = [
    dict(delta=0.5),
    dict(scale_probe=3.0),
    dict(batch=15),
    dict(fidelity="poisson"),
    dict(probe={"frozen": 2}),
]


def object_of(**change: Any) -> torch.Tensor:
    """Return the object of a short run with changed options."""
    toy = make(views=30, noise=True)
    return run(toy, CG(epochs=4, **change), toy.start()).estimate.object


#: Every changed option is compared with one and the same run.
unchanged = functools.cache(object_of)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_option_matters(change: dict) -> None:
    assert relative(object_of(**change), unchanged()) > 1e-4


def test_refusals() -> None:
    for options, words in [(dict(delta=0), "delta"), (dict(scale_probe=0), "scale_probe"), (dict(alpha=1), "alpha")]:
        with pytest.raises(BadInput, match=words):
            CG(**options)
    with pytest.raises(BadInput, match="subpixel"):
        run(make(subpixel="none"), CG(positions=True), make().start())


def test_resumed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    check_resume(tmp_path, CG, {"epochs": 5, "positions": {"start": 2}}, 3)


def test_memory_grows_with_the_object() -> None:
    toy = make(views=41)
    start = toy.start()
    start.probe.copy_(torch.roll(start.probe, (6, 5), (-2, -1)))
    state = run(toy, CG(epochs=4, probe={"centre": True}), start, seed=7)
    assert state.estimate.object.shape != (1, 96, 96)
    assert state.engines[0]["object_direction"].shape == state.estimate.object.shape


def test_memory_of_another_object_is_forgotten() -> None:
    toy = make(views=20)
    problem, e, engine = toy.problem(), toy.start(), CG()
    problem.begin_epoch(e)
    for name in ("object_direction", "object_slope"):
        engine.state[name] = torch.ones(1, 32, 32, dtype=torch.complex128)
    _, z = engine.downhill(problem, e, Batch(np.arange(20)))
    assert engine.recall("direction", problem, e, z) is None
    engine.step(problem, e, Batch(np.arange(20)))
    assert engine.state["object_direction"].shape == e.object.shape
