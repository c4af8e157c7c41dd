"""Exit waves along directions, in float64: second-order expansions against differences, polynomials against steps."""

from dataclasses import replace

import pytest
import torch

from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity, window_shifts
from ptymesh.physics.expansions import Direction, evaluated, exit_jet, exit_polynomial, power_polynomial
from ptymesh.physics.fidelity import Data
from ptymesh.physics.model import power
from toy import Toy, make, relative

EVERY = torch.arange(4)
CASES = [
    pytest.param(dict(subpixel=s, propagation=p, slices=n), id=f"{s}-{p}-{n}")
    for s in ("fourier", "bilinear", "none")
    for p, n in (("far_field", 1), ("far_field", 3), ("angular_spectrum", 1), ("fresnel", 2))
]


def toy_of(case: dict) -> Toy:
    return make(views=4, window=(14, 16), modes=2, varying=True, **case)


def random(like: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


def directions_of(toy: Toy) -> list[Direction]:
    e, moves = toy.truth, toy.model.subpixel != "none"
    return [
        Direction(random(e.object, i), random(e.probe, 10 + i), random(e.positions, 20 + i) if moves else None)
        for i in (0, 1)
    ]


def moved(e: Estimate, directions: list[Direction], steps: tuple[float, float]) -> Estimate:
    for t, d in zip(steps, directions, strict=True):
        positions = e.positions if d.positions is None else e.positions + t * d.positions
        e = replace(e, object=e.object + t * d.object, probe=e.probe + t * d.probe, positions=positions)
    return e


def scene_of(toy: Toy, e: Estimate):  # type: ignore[no-untyped-def]
    f = e.fractions(EVERY)
    return toy.model.forward(
        toy.model.windows(e.object, e.anchors, f, e.window), toy.model.probes(e.probe, f, e.weights)
    )


def detected(toy: Toy, e: Estimate) -> torch.Tensor:
    return toy.model.detect(scene_of(toy, e).exit, e.fractions(EVERY))


@pytest.mark.parametrize("case", CASES)
def test_second_order(case: dict) -> None:
    toy, e = toy_of(case), toy_of(case).truth
    directions = directions_of(toy)
    jet = exit_jet(toy.model, e.object, scene_of(toy, e), directions, e.anchors, e.fractions(EVERY), e.weights).apply(
        lambda wave: toy.model.detect(wave, e.fractions(EVERY))
    )

    def at(*steps: float) -> torch.Tensor:
        return detected(toy, moved(e, directions, steps))  # type: ignore[arg-type]

    h = 1e-4
    assert relative(jet.value, at(0, 0)) < 1e-13
    assert relative(jet.first[0], (at(h, 0) - at(-h, 0)) / (2 * h)) < 1e-6
    assert relative(jet.first[1], (at(0, h) - at(0, -h)) / (2 * h)) < 1e-6
    assert relative(jet.second[0, 0], (at(h, 0) - 2 * at(0, 0) + at(-h, 0)) / h**2) < 1e-5
    mixed = (at(h, h) - at(h, -h) - at(-h, h) + at(-h, -h)) / (4 * h**2)
    assert relative(jet.second[0, 1], mixed) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_polynomial_is_exact(case: dict) -> None:
    toy, e = toy_of(case), toy_of(case).truth
    d, f = directions_of(toy)[0], toy_of(case).truth.fractions(EVERY)
    windows = toy.model.windows(d.object, e.anchors, f, e.window)
    waves = exit_polynomial(toy.model, scene_of(toy, e), toy.model.probes(d.probe, f, e.weights), windows)
    assert len(waves) == len(e.object) + 2
    powers = power_polynomial([toy.model.detect(wave, f) for wave in waves])
    for t in (0.0, 0.7, -2.0):
        expected = power(detected(toy, replace(e, object=e.object + t * d.object, probe=e.probe + t * d.probe)))
        assert relative(evaluated(powers, t), expected) < 1e-13


def test_bilinear_derivatives() -> None:
    toy = toy_of(dict(subpixel="bilinear"))
    e, h = toy.truth, 1e-5
    f = e.fractions(EVERY)
    y, x = torch.tensor([h, 0.0], dtype=torch.float64), torch.tensor([0.0, h], dtype=torch.float64)

    def cut(f: torch.Tensor, order: tuple[int, int] = (0, 0)) -> torch.Tensor:
        return window_shifts.cut_bilinear(e.object, e.anchors, f, e.window, order)

    assert relative(cut(f, (1, 0)), (cut(f + y) - cut(f - y)) / (2 * h)) < 1e-9
    assert relative(cut(f, (1, 1)), (cut(f + x, (1, 0)) - cut(f - x, (1, 0))) / (2 * h)) < 1e-9


@pytest.mark.parametrize("kind", ["amplitude", "poisson", "intensity"])
def test_curvature_is_the_derivative_of_slope(kind: str) -> None:
    rng = torch.Generator().manual_seed(0)
    S, y = (1 + 5 * torch.rand(3, 6, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    good = torch.ones(3, 6, 7, dtype=torch.bool)
    good[0, 1, 2] = False
    data, h = Data(y, good, torch.full((6, 7), 0.3, dtype=torch.float64)), 1e-6
    numeric = (fidelity.slope(kind, S + h, data) - fidelity.slope(kind, S - h, data)) / (2 * h)
    assert relative(fidelity.curvature(kind, S, data), numeric) < 1e-8
    assert fidelity.curvature(kind, S, data)[0, 1, 2] == 0
