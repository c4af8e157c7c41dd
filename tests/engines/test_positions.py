"""Positions by other methods than the gradient, and what is done to the moves of all views."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from descents import check_resume
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import RPIE, Adam, positions
from ptymesh.engines.base import AffineTerm
from ptymesh.engines.positions.moving import clip_outliers
from ptymesh.errors import BadInput
from ptymesh.models.scan_geometry import matrix_of
from ptymesh.physics.correlation import find_shifts
from ptymesh.physics.window_shifts import shift
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, share, smooth

METHODS: dict[str, dict[str, Any]] = {
    "correlation": {"method": "correlation"},
    "annealing": {"method": "annealing"},
    "momentum": {"momentum": 0.5, "clip_mad": 4.0},
    "affine": {"affine": ["scale", "rotation"]},
}
#: A stage that is long enough for views astray to be left out and looked for once.
RELOCATING: dict[str, Any] = {"epochs": 20, "positions": {"momentum": 0.5, "relocate": True}}


def test_shifts_between_windows_are_found_between_pixels() -> None:
    rng = np.random.default_rng(0)
    a = torch.from_numpy(smooth((3, 32, 28), 3.0, rng) + 1j * smooth((3, 32, 28), 3.0, rng))
    wanted = torch.tensor([[0.3, -1.2], [3.7, 0.1], [-5.4, 6.25]], dtype=torch.float64)
    b = torch.stack([shift(one[None], -e[None])[0, 0] for one, e in zip(a, wanted, strict=True)])
    assert torch.allclose(find_shifts(a[:, None], b[:, None]), wanted, atol=1e-9)
    assert torch.allclose(find_shifts(a[:, None], 2j * b[:, None]), wanted, atol=1e-9)
    empty = torch.zeros_like(a[:1, None])
    assert (find_shifts(empty, empty) == 0).all()


def error_of(toy: Toy, found: torch.Tensor) -> float:
    """Mean distance from the true positions, but for a move of all together."""
    off = found - toy.truth.positions
    return float((off - off.mean(0)).norm(dim=1).mean())


def refined(subpixel: str, **options: Any) -> tuple[float, float]:
    """Errors before and after of a scan whose positions are off by up to 2 px per axis."""
    toy = make(views=80, counts=1e6, subpixel=subpixel)
    start = toy.start(probe_error=0.05, position_error=2.0)
    before, state = error_of(toy, start.positions), RunState(start)
    Loop(toy.problem(), state, [RPIE(epochs=60, batch=10, alpha=0.3, positions={"start": 5, **options})]).run()
    return before, error_of(toy, state.estimate.positions)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "subpixel"),
    [
        ("correlation", "fourier"),
        ("annealing", "bilinear"),
        pytest.param("momentum", "fourier", marks=pytest.mark.long),
        pytest.param("correlation", "bilinear", marks=pytest.mark.long),
        pytest.param("annealing", "fourier", marks=pytest.mark.long),
    ],
)
def test_positions_are_found(method: str, subpixel: str) -> None:
    before, after = refined(subpixel, **METHODS[method])
    assert before > 1.4 and after < before / 2


def test_trials_reach_further_than_their_limit_at_first_and_less_later() -> None:
    """With the true object and probe, of eight trials the best is taken, and the radius falls."""
    toy = make(views=40)
    problem = toy.problem()
    engine = RPIE(epochs=4, positions={"method": "annealing", "trials": 8, "radius_px": 3.0})
    moves = []
    for epoch in (1, 4):
        e = toy.start(probe_error=0.0, position_error=2.5)
        e.object.copy_(toy.truth.object)
        start = e.positions.clone()
        problem.begin_epoch(e)
        before = problem.residual(e)[0]
        positions.search(engine, problem, e, np.arange(40), start, (0, epoch - 1, epoch))
        assert problem.residual(e)[0] < before
        moves.append(float((e.positions - start).abs().max()))
    assert 1.5 < moves[0] <= 3 and moves[1] <= 0.75


def test_terms_of_an_affine_map_are_kept_by_name() -> None:
    rng = np.random.default_rng(0)
    nominal = torch.from_numpy(100 * rng.random((60, 2)))
    centred = nominal - nominal.mean(0)
    truth = {"scale": 0.01, "rotation": -0.02, "aspect": 0.004, "shear": 0.006}
    parts: dict[AffineTerm, torch.Tensor] = {}
    for name, number in truth.items():
        matrix = torch.from_numpy(matrix_of({name: number})) - torch.eye(2, dtype=torch.float64)
        parts[name] = centred @ matrix.T  # type: ignore[index]
    moved = sum(parts.values(), torch.tensor([1.0, -2.0], dtype=torch.float64))
    middle = moved.mean(0)
    for terms in (["scale"], ["rotation", "scale"], ["aspect", "shear"]):
        others = [name for name in truth if name not in terms]
        only = middle + sum(parts[name] for name in terms)  # type: ignore[index]
        found = positions.affine_part(nominal, only, terms)  # type: ignore[arg-type]
        assert torch.allclose(found, only, atol=1e-4), "rotations are linear in the angle but for its square"
        left = positions.affine_part(nominal, only, others)  # type: ignore[arg-type]
        assert (left - middle).norm() < 0.3 * (only - middle).norm()
    assert torch.allclose(positions.affine_part(nominal, moved), moved, atol=1e-9)


def test_outliers_are_clipped() -> None:
    rng = np.random.default_rng(1)
    values = torch.from_numpy(rng.normal(0.3, 0.1, (400, 2)))
    values[7] = torch.tensor([5.0, -5.0])
    found = clip_outliers(values, 4.0)
    assert torch.allclose(found[7], torch.tensor([0.7, -0.1], dtype=torch.float64), atol=0.05)
    assert torch.equal(found[8:], values[8:]) and torch.equal(found[:7], values[:7])
    still = torch.zeros(9, 2, dtype=torch.float64)
    still[3] = 1.0
    assert torch.equal(clip_outliers(still, 4.0), still), "no spread, no outlier"


def test_views_astray_are_found_on_the_object_of_the_others() -> None:
    """Of 60 views, five that lie 5 px off on an object that they have not made are named, and found to half a pixel."""
    toy = make(views=60)
    problem = toy.problem()
    engine = RPIE(epochs=20, positions={"relocate": True})
    e, views = toy.start(probe_error=0.0), np.arange(60)
    e.object.copy_(toy.truth.object)
    wrong = torch.tensor([3, 17, 30, 41, 55])
    e.positions[wrong] += torch.tensor([4.0, -3.0], dtype=torch.float64)
    e.nominal.copy_(toy.truth.positions + torch.from_numpy(np.random.default_rng(0).normal(0, 1.0, (60, 2))))
    problem.begin_epoch(e)
    off = e.positions - toy.truth.positions
    engine.state["position_velocity"] = torch.ones_like(off)
    positions.relocate(engine, problem, e, views, 7)
    assert list(positions.drop_astray(engine, views)) == list(views), "not yet"
    positions.relocate(engine, problem, e, views, 8)
    assert list(np.setdiff1d(views, positions.drop_astray(engine, views))) == wrong.tolist()
    positions.relocate(engine, problem, e, views, 12)
    assert list(positions.drop_astray(engine, views)) == list(views), "all take part again"
    found = e.positions - toy.truth.positions
    assert float(found[wrong].abs().max()) < 0.8
    others = np.setdiff1d(views, wrong)
    assert torch.equal(found[others], off[others]), "no other moves"
    assert bool((engine.state["position_velocity"][wrong] == 0).all())
    positions.relocate(engine, problem, e, views, 20)
    assert list(positions.drop_astray(engine, views)) == list(views), "too few epochs are left"


def test_an_affine_part_may_be_fitted_by_some_views() -> None:
    nominal = torch.from_numpy(100 * np.random.default_rng(0).random((30, 2)))
    moves = 0.02 * nominal + 1
    wanted, fitted = moves.clone(), torch.arange(30) > 3
    moves[:4] += 50
    assert torch.allclose(positions.affine_part(nominal, moves, fitted=fitted), wanted, atol=1e-9)


def outcome(world: World, layout: str, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    toy = make(views=41, uneven=True, dtype=torch.complex64)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(position_error=1.5), problem))
    Loop(problem, state, [RPIE(batch=19, **options)], seed=2, hold_out=0.1).run()
    return problem.layout.gather_whole(state.estimate.object, state.estimate).numpy(), state.estimate.positions.numpy()


def outcomes(world: World, layout: str) -> list[tuple[np.ndarray, np.ndarray]]:
    stages = [*({"epochs": 3, "positions": options} for options in METHODS.values()), RELOCATING]
    return [outcome(world, layout, options) for options in stages]


@cache
def of_one() -> list[tuple[np.ndarray, np.ndarray]]:
    return outcomes(Solo(), "replicated")


@pytest.mark.parametrize(("size", "layout"), [(2, "replicated"), (3, "tiled")])
def test_same_bits_on_any_ranks_in_both_layouts(ranks, size: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    one = of_one()
    for other in ranks(size, outcomes, layout):
        for method, mine, theirs in zip((*METHODS, "relocate"), one, other, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)), method
    start = make(views=41, uneven=True, dtype=torch.complex64).start(position_error=1.5).positions.numpy()
    assert all(not np.array_equal(found - found.mean(0), start - start.mean(0)) for _, found in one)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_resumed_ends_as_one_in_one_go(tmp_path: Path, method: str) -> None:
    check_resume(tmp_path, RPIE, {"epochs": 4, "batch": 15, "positions": METHODS[method]}, 5)


def test_a_run_is_resumed_while_views_are_left_out(tmp_path: Path) -> None:
    check_resume(tmp_path, RPIE, {"batch": 15, **RELOCATING}, 20)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"relocate": True, "affine": True}, "relocate moves views one by one, and affine keeps no such moves"),
        ({"relocate": True, "every": 2}, "relocate counts epochs in which positions move, one by one"),
        ({"trials": 4}, "trials is for method: annealing, not for gradient"),
        ({"method": "correlation", "radius_px": 1}, "radius_px is for method: annealing, not for correlation"),
        ({"method": "annealing", "momentum": 0.5}, "beyond the best of their trials"),
        ({"affine": ["scale", "scale"]}, "names one twice: scale, scale"),
        ({"affine": ["size"]}, "'size' is no part of an affine map; name some of scale, rotation"),
        ({"affine": []}, "affine"),
    ],
)
def test_what_has_no_effect_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        RPIE.parse({"positions": options})
    with pytest.raises(BadInput, match=r"follows the gradient, and positions\.method is annealing"):
        Adam.parse({"unknowns": {"positions": True}, "positions": {"gain": 1, "method": "annealing"}})
