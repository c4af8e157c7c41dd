"""Bilinear Hessian: derivatives against differences and the written formula, steps, fallbacks, and phantoms."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from descents import FEATURES, check_resume, loss, named, position_error, run
from ptymesh.engines import BH
from ptymesh.engines.bh import FAR, second_order, solved
from ptymesh.engines.descent import dot
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.expansions import Direction
from ptymesh.problem import Batch, Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative

VIEWS = 5
CASES = [
    pytest.param(dict(subpixel=s, propagation=p, slices=n, fidelity=k), id=f"{s}-{p}-{n}-{k}")
    for s, p, n, k in (
        ("fourier", "far_field", 1, "amplitude"),
        ("fourier", "far_field", 2, "poisson"),
        ("fourier", "angular_spectrum", 1, "intensity"),
        ("fourier", "fresnel", 2, "amplitude"),
        ("bilinear", "far_field", 1, "poisson"),
        ("bilinear", "angular_spectrum", 2, "amplitude"),
        ("none", "far_field", 1, "amplitude"),
        ("none", "far_field", 3, "intensity"),
    )
]


def random(like: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


def disturbed(case: dict) -> tuple[Problem, Estimate, list[Direction]]:
    """An estimate away from the truth, with background, mask, OPR modes and uneven beams, and two directions."""
    toy = make(views=VIEWS, window=(16, 18), modes=2, background=0.5, varying=True, counts=3e3, **case)
    toy.measurement.mask[3, 4] = False
    e, moves = toy.truth, toy.model.subpixel != "none"
    e = replace(
        e,
        object=e.object + 0.1 * random(e.object, 1),
        probe=e.probe * (1 + 0.1 * random(e.probe, 2)),
        positions=e.positions + (0.1 * random(e.positions, 3) if moves else 0),
        opr=0.3 * e.probe[:1].flip(0, 1).repeat(2, 1, 1),
        weights=torch.cat((e.weights, 0.3 * torch.randn(VIEWS, 2, dtype=torch.float64)), dim=1),
    )
    problem = toy.problem()
    problem.begin_epoch(e)
    size = e.probe.abs()
    directions = [
        Direction(
            0.3 * random(e.object, 10 + i), 0.3 * size * random(e.probe, i), random(e.positions, i) if moves else None
        )
        for i in (5, 6)
    ]
    return problem, e, directions


def moved(e: Estimate, directions: list[Direction], steps: tuple[float, float]) -> Estimate:
    for t, d in zip(steps, directions, strict=True):
        positions = e.positions if d.positions is None else e.positions + t * d.positions
        e = replace(e, object=e.object + t * d.object, probe=e.probe + t * d.probe, positions=positions)
    return e


@pytest.mark.parametrize("case", CASES)
def test_gradient_and_hessian(case: dict) -> None:
    """L' against differences of the loss, H against differences of L'."""
    problem, e, directions = disturbed(case)

    def at(*steps: float) -> tuple[torch.Tensor, torch.Tensor]:
        there = moved(e, directions, steps)  # type: ignore[arg-type]
        (chunk,) = problem.loader.chunks(there, np.arange(VIEWS))
        first, second = second_order(problem, there, chunk, directions)
        return first.sum(0), second.sum(0)

    def lost(*steps: float) -> float:
        return loss(problem, moved(e, directions, steps))  # type: ignore[arg-type]

    def slope(y: int, x: int) -> float:
        """Of fourth order: one of the slopes may be thousands of times smaller than the loss, whose rounding counts."""
        h = 1e-4
        near, far = (lost(k * h * y, k * h * x) - lost(-k * h * y, -k * h * x) for k in (1, 2))
        return (8 * near - far) / (12 * h)

    h = 1e-6
    slopes, hessian = at(0, 0)
    assert slopes.tolist() == pytest.approx([slope(1, 0), slope(0, 1)], rel=1e-5)
    rows = [(at(h, 0)[0] - at(-h, 0)[0]) / (2 * h), (at(0, h)[0] - at(0, -h)[0]) / (2 * h)]
    assert relative(hessian, torch.stack(rows)) < 1e-6


def test_amplitude_hessian_is_the_written_one() -> None:
    """H(d,d) = sum 2(1 - sqrt(y/I)) [sum_m |dPsi|^2 + Re sum_m conj(Psi) d2Psi] + 2 sqrt(y) u^2 I^(-3/2), far field."""
    toy = make(views=3, modes=2, subpixel="none", background=1.0)
    problem, e = toy.problem(), toy.start()
    problem.begin_epoch(e)
    d = Direction(random(e.object, 1), random(e.probe, 2))
    h, w = e.window
    expected = 0.0
    for j, (y, x) in enumerate(e.anchors.tolist()):
        window, change = e.object[0, y : y + h, x : x + w], d.object[0, y : y + h, x : x + w]
        F = lambda psi: torch.fft.fft2(psi, norm="ortho")  # noqa: E731
        Psi, dPsi = F(e.probe * window), F(d.probe * window + e.probe * change)
        d2Psi = 2 * F(d.probe * change)
        I = (Psi.abs() ** 2).sum(0) + e.background
        counts = torch.as_tensor(toy.measurement.patterns.read(np.array([j]))[0])
        u = (Psi.conj() * dPsi).real.sum(0)
        bracket = (dPsi.abs() ** 2).sum(0) + (Psi.conj() * d2Psi).real.sum(0)
        expected += float((2 * (1 - (counts / I).sqrt()) * bracket + 2 * counts.sqrt() * u**2 * I**-1.5).sum())
    (chunk,) = problem.loader.chunks(e, np.arange(3))
    hessian = second_order(problem, e, chunk, [d])[1].sum(0)
    assert float(hessian[0, 0]) == pytest.approx(expected, rel=1e-12)


# --- steps ---


def test_gradient_step() -> None:
    """(O, P) += -<g, z>/H(z, z) z."""
    toy = make(views=20)
    problem, e, engine = toy.problem(), toy.start(), BH(directions="gradient")
    problem.begin_epoch(e)
    batch = Batch(np.arange(20))
    s, z = engine.downhill(problem, e, batch)
    slope = -2 * dot(problem, e, s, z)
    slopes, hessian = engine.model_along(problem, e, batch, [z])
    assert float(slopes[0]) == pytest.approx(float(slope), rel=1e-12)
    expected = e.probe - slope / hessian[0, 0] * z.probe
    engine.step(problem, e, batch)
    assert relative(e.probe, expected) < 1e-12 and not engine.state and not engine.per_view


def test_stationary_point() -> None:
    slopes = torch.tensor([-2.0, 0.0], dtype=torch.float64)
    hessian = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    lengths = solved(slopes, hessian)
    assert lengths is not None and torch.allclose(hessian @ lengths, -slopes)
    assert float(lengths[1] / lengths[0]) == pytest.approx(-1 / 2)  # Daniel's beta, -H(z,v)/H(v,v)


@pytest.mark.parametrize(
    ("hessian", "expected"),
    [
        ([[2.0, 0.0], [0.0, -1.0]], [1.0, 0.0]),  # no minimum along v
        ([[2.0, 2.0], [2.0, 2.0]], [1.0, 0.0]),  # parallel
        ([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0]),  # v = 0
        ([[2.0, 0.0], [0.0, 1 / FAR]], [1.0, 0.0]),  # further than the model can be trusted
        ([[2.0, 0.0], [0.0, -1e300]], [1.0, 0.0]),
        ([[-1e300, 0.0], [0.0, 1.0]], None),
        ([[torch.nan, 0.0], [0.0, 1.0]], None),
        ([[1 / FAR, 0.0], [0.0, 1.0]], None),
    ],
)
def test_steps_that_cannot_be_trusted(hessian: list, expected: list | None) -> None:
    lengths = solved(torch.tensor([-2.0, -1.0]).double(), torch.tensor(hessian, dtype=torch.float64))
    assert (None if lengths is None else lengths.tolist()) == expected


def test_search_where_the_hessian_is_not_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe much too weak: the loss bends down along the gradient, and a search takes over."""
    toy = make(views=20)
    problem, e = toy.problem(), toy.start()
    e.probe *= 0.05
    problem.begin_epoch(e)
    engine, batch = BH(), Batch(np.arange(20), refine=False)
    _, z = engine.downhill(problem, e, batch)
    _, hessian = engine.model_along(problem, e, batch, [z])
    assert float(hessian[0, 0]) < 0
    searches, search = [], BH.search

    def counted(*arguments: Any) -> torch.Tensor:
        searches.append(1)
        return search(*arguments)

    monkeypatch.setattr(BH, "search", counted)
    before = loss(problem, e)
    for _ in range(30):
        engine.step(problem, e, batch)
    assert searches and loss(problem, e) < before / 50


def test_positions_of_a_search_stay() -> None:
    toy = make(views=20)
    problem, e = toy.problem(), toy.start(position_error=0.5)
    e.probe *= 0.05
    problem.begin_epoch(e)
    engine = BH(positions=True)
    batch = Batch(np.arange(20), refine=True)
    engine.step(problem, e, batch)
    assert batch.view_updates.positions == []


# --- phantoms ---


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", FEATURES, ids=named)
def test_phantom(case: dict) -> None:
    toy = make(**{"views": 60, "counts": 1e5, **case})
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, BH(epochs=30, fidelity=toy.model.fidelity), start)
    after, _ = toy.problem().residual(state.estimate)
    assert after < before / 100


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", [dict(), dict(subpixel="bilinear")], ids=named)
def test_positions_jointly(case: dict) -> None:
    toy = make(views=80, counts=1e6, **case)
    start = toy.start(probe_error=0.05, position_error=0.5)
    before = position_error(toy, start)
    state = run(toy, BH(epochs=60, positions={"start": 15}), start)
    assert position_error(toy, state.estimate) < before / 4


def test_conjugate_directions_converge_faster() -> None:
    toy = make(views=60)
    conjugate, gradient = (
        toy.problem().residual(run(toy, BH(epochs=25, directions=d), toy.start()).estimate)[0]
        for d in ("conjugate", "gradient")
    )
    assert conjugate < gradient / 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [2, 7, 64])
def test_any_batch_size_converges(batch: int) -> None:
    toy = make()
    history = run(toy, BH(epochs=8, batch=batch), toy.start()).history["residual"]
    assert history[-1] < history[0] / 3


# --- options, memory ---

CHANGES = [
    dict(delta=0.5),
    dict(scale_probe=3.0),
    dict(directions="gradient"),
    dict(batch=15),
    dict(fidelity="poisson"),
    dict(scale_positions=0.5, positions=True),
    dict(positions={"limit_px": 0.001}),
    dict(positions={"gain": 0.5}),
]


def object_of(**options: Any) -> torch.Tensor:
    """Return the object of a short run with these options."""
    toy = make(views=30, noise=True)
    return run(toy, BH(**{"epochs": 4, **options}), toy.start(position_error=0.5)).estimate.object


#: Every changed option is compared with one of two runs, with and without positions that move.
unchanged = functools.cache(object_of)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_option_matters(change: dict) -> None:
    base = {"positions": True} if "positions" in change else {}
    assert relative(object_of(**{**base, **change}), unchanged(**base)) > 1e-6


def test_refusals() -> None:
    for options, words in [
        (dict(directions="newton"), "directions"),
        (dict(scale_positions=0), "scale_positions"),
        (dict(momentum=1), "momentum"),
    ]:
        with pytest.raises(BadInput, match=words):
            BH(**options)  # type: ignore[arg-type]
    toy = make(subpixel="none")
    with pytest.raises(BadInput, match="subpixel"):
        run(toy, BH(positions=True), toy.start())


@pytest.mark.parametrize(("batch", "stopped"), [(None, 4), (20, 7)])
def test_resumed_runs_end_with_the_same_bits(tmp_path: Path, batch: int | None, stopped: int) -> None:
    """What is remembered of positions comes back, too."""
    check_resume(tmp_path, BH, {"epochs": 5, "batch": batch, "positions": {"start": 2}}, stopped)


def test_positions_have_a_memory() -> None:
    toy: Toy = make(views=20)
    state = RunState(toy.start(position_error=0.5))
    engine = BH(epochs=3, positions=True)
    Loop(toy.problem(), state, [engine]).run()
    assert engine.per_view["position_step"].shape == (20, 2) and bool(engine.per_view["position_step"].any())
