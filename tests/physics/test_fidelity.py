"""Fidelities: their derivatives, and what their steps must do to the intensities."""

import math

import pytest
import torch

from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import FIDELITIES, Data, Fidelity, fidelity_of
from ptymesh.physics.fidelity.amplitude import AmplitudeFidelity
from ptymesh.physics.fidelity.anscombe import OFFSET

H, W = 8, 9


def sample(dtype: torch.dtype = torch.float64, background: float | None = None) -> tuple[torch.Tensor, Data]:
    rng = torch.Generator().manual_seed(0)
    S = 50 * torch.rand(3, H, W, generator=rng, dtype=dtype)
    y = torch.poisson(40 * torch.rand(3, H, W, generator=rng, dtype=dtype), generator=rng)
    mask = torch.ones(H, W, dtype=torch.bool)
    mask[2, 3] = False
    b = None if background is None else torch.full((H, W), background, dtype=dtype)
    return S, Data.of(y, mask, b, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_amplitude_step_is_the_modulus_projection(dtype: torch.dtype) -> None:
    S, data = sample(dtype)
    factor = fidelity.revision("amplitude", S, data)
    assert torch.allclose((S * factor**2)[data.good], data.y[data.good], rtol=1e-5)


def test_amplitude_steps_with_background_leave_room_for_it() -> None:
    S, data = sample(background=3.0)
    before = fidelity.value("amplitude", S, data)
    for _ in range(300):
        S = S * fidelity.revision("amplitude", S, data) ** 2
        after = fidelity.value("amplitude", S, data)
        assert bool((after <= before * (1 + 1e-12)).all())
        before = after
    assert torch.allclose(S[data.good], (data.y - 3).clamp(min=0)[data.good], atol=0.05)


def test_amplitude_step_keeps_the_mean_of_few_counts_on_a_background() -> None:
    S, b = torch.full((1, 200, 200), 0.5, dtype=torch.float64), torch.full((200, 200), 3.0, dtype=torch.float64)
    counts = torch.poisson(S + b, generator=torch.Generator().manual_seed(1))
    data = Data.of(counts, torch.ones(200, 200, dtype=torch.bool), b, torch.float64)
    mean = float((S * fidelity.revision("amplitude", S, data) ** 2).mean())
    assert abs(mean - 0.5) < 0.005, "S y / I has the mean S; max(y - b, 0) has 0.99"


@pytest.mark.parametrize("kind", FIDELITIES)
@pytest.mark.parametrize("background", [None, 2.0])
def test_step_lowers_the_loss_of_every_view(kind: str, background: float | None) -> None:
    S, data = sample(background=background)
    before = fidelity.value(kind, S, data)
    after = fidelity.value(kind, S * fidelity.revision(kind, S, data) ** 2, data)
    assert (after < before).all()


def test_poisson_step_finds_the_minimum_along_its_line() -> None:
    S, data = sample()
    xi = torch.where(data.good, 1 - data.y / S, 0.0)
    xi = xi.clamp(min=1 - fidelity.BRIGHTEST_RATIO)
    ladder = torch.linspace(0, 1, 2001, dtype=torch.float64)
    losses = torch.stack([fidelity.value("poisson", S * (1 - a * xi) ** 2, data) for a in ladder])
    best = fidelity.value("poisson", S * fidelity.revision("poisson", S, data) ** 2, data)
    assert torch.allclose(best, losses.min(0).values, rtol=1e-6)


def test_one_dim_pixel_does_not_decide_a_view() -> None:
    S, data = sample()
    S[0, 0, 0] = 1e-9
    data.y[0, 0, 0] = 1
    factor = fidelity.revision("poisson", S, data)
    assert factor.abs().max() < 10
    assert fidelity.value("poisson", S * factor**2, data)[0] < fidelity.value("poisson", S, data)[0]


@pytest.mark.parametrize("kind", FIDELITIES)
def test_masked_pixels_ask_for_nothing(kind: str) -> None:
    S, data = sample()
    assert (fidelity.revision(kind, S, data)[:, 2, 3] == 1).all()
    assert (fidelity.slope(kind, S, data)[:, 2, 3] == 0).all()
    changed = S.clone()
    changed[:, 2, 3] *= 100
    assert torch.equal(fidelity.value(kind, S, data), fidelity.value(kind, changed, data))
    assert torch.equal(fidelity.residual_terms(S, data), fidelity.residual_terms(changed, data))


def test_a_count_below_zero_is_no_data_in_that_view_alone() -> None:
    counts = torch.full((2, H, W), 5, dtype=torch.int16)
    counts[1, 4, 4] = -1
    data = Data.of(counts, torch.ones(H, W, dtype=torch.bool), None, torch.float32)
    assert data.good[0, 4, 4] and not data.good[1, 4, 4] and data.y[1, 4, 4] == 0


@pytest.mark.parametrize("kind", FIDELITIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dark_model_under_counts_stays_finite(kind: str, dtype: torch.dtype) -> None:
    _, data = sample(dtype)
    S = torch.zeros(3, H, W, dtype=dtype)
    for values in (
        fidelity.revision(kind, S, data) * S.sqrt(),
        fidelity.slope(kind, S, data),
        fidelity.value(kind, S, data),
    ):
        assert torch.isfinite(values).all()


def test_residual_terms() -> None:
    S, data = sample()
    terms = fidelity.residual_terms(S, data)
    good = data.good
    difference = (S.sqrt() - data.y.sqrt()) * good
    assert torch.allclose(terms[:, 0], (difference**2).sum((1, 2)))
    assert torch.allclose(terms[:, 1], data.y.sum((1, 2)))
    assert torch.allclose(terms[:, 2], difference.abs().sum((1, 2)))
    assert torch.allclose(terms[:, 3], (data.y.sqrt() * good).sum((1, 2)))


@pytest.mark.parametrize("kind", FIDELITIES)
@pytest.mark.parametrize("background", [None, 2.0])
def test_pixels_without_light_say_nothing(kind: str, background: float | None) -> None:
    S, data = sample(background=background)
    data.y[0, 0, :2] = 100
    least = fidelity.UNLIT * data.y.mean((-1, -2))
    S[0, 0, 0], S[0, 0, 1] = 0.9 * least[0], 1.1 * least[0]
    factor, slope, curvature = (f(kind, S, data) for f in (fidelity.revision, fidelity.slope, fidelity.curvature))
    assert factor[0, 0, 0] == 1 and slope[0, 0, 0] == 0 and curvature[0, 0, 0] == 0
    assert factor[0, 0, 1] > 1 and slope[0, 0, 1] < 0 and curvature[0, 0, 1] > 0


def test_a_view_without_counts_is_darkened_by_a_step() -> None:
    S, data = sample()
    data.y[0] = 0
    assert (fidelity.revision("amplitude", S, data)[0][data.good[0]] == 0).all()


@pytest.mark.parametrize("kind", FIDELITIES)
def test_derivatives_are_those_of_the_loss(kind: str) -> None:
    one, (S, data) = fidelity_of(kind), sample()
    I, step = S + 1, 1e-5
    slopes = (one.loss(I + step, data.y) - one.loss(I - step, data.y)) / (2 * step)
    assert torch.allclose(one.slope(I, data.y), slopes, atol=1e-8, rtol=1e-6)
    bends = (one.slope(I + step, data.y) - one.slope(I - step, data.y)) / (2 * step)
    assert torch.allclose(one.curvature(I, data.y), bends, atol=1e-8, rtol=1e-6)
    assert torch.allclose(one.norm(I), one.curvature(I, I), rtol=1e-12)
    assert (one.norm(I) > 0).all()


class Blurred:
    """Every pixel shares its light with the next."""

    def signal(self, S: torch.Tensor) -> torch.Tensor:
        return self.apply(S)

    def apply(self, S: torch.Tensor) -> torch.Tensor:
        return 0.7 * S + 0.3 * S.roll(1, -1)

    def adjoint(self, x: torch.Tensor) -> torch.Tensor:
        return 0.7 * x + 0.3 * x.roll(-1, -1)


@pytest.mark.parametrize("kind", FIDELITIES)
@pytest.mark.parametrize("background", [None, 2.0])
def test_the_step_that_a_fidelity_has_without_one_of_its_own(kind: str, background: float | None) -> None:
    one, (S, data) = fidelity_of(kind), sample(background=background)
    data = data.illuminated(S)
    alone = Fidelity.revision(one, S, data)
    assert (fidelity.value(kind, S * alone**2, data) < fidelity.value(kind, S, data)).all()
    through = Fidelity.revision_through(one, Blurred(), S, data)
    before, after = (fidelity.value(kind, Blurred().signal(s), data) for s in (S, S * through**2))
    assert (after < before).all()


def test_that_step_is_the_modulus_projection_for_amplitudes() -> None:
    S, data = sample()
    data = data.illuminated(S)
    lit = data.good
    assert torch.allclose(
        Fidelity.revision(AmplitudeFidelity(), S, data)[lit], AmplitudeFidelity().revision(S, data)[lit], rtol=1e-9
    )


@pytest.mark.parametrize("background", [None, 2.0])
def test_anscombe_is_amplitudes_with_more_counts_and_background(background: float | None) -> None:
    S, data = sample(background=background)
    more = Data(torch.where(data.good, data.y + OFFSET, 0.0), data.good, torch.tensor(OFFSET + (background or 0.0)))
    for found in (fidelity.value, fidelity.slope, fidelity.curvature, fidelity.revision):
        assert torch.allclose(found("anscombe", S, data), found("amplitude", S, more), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("mean", "amplitude", "anscombe"), [(0.3, 0.25, 0.74), (1.0, 0.60, 0.82), (5.0, 0.94, 0.95)])
def test_few_counts_bias_anscombe_less_than_amplitudes(mean: float, amplitude: float, anscombe: float) -> None:
    """The intensity that fits Poisson's counts best is a share of their mean."""
    y = torch.arange(60, dtype=torch.float64)
    chances = torch.exp(y * math.log(mean) - mean - torch.lgamma(y + 1))
    ladder = mean * torch.linspace(0.05, 1.2, 2301, dtype=torch.float64)[:, None]
    for kind, share in (("amplitude", amplitude), ("anscombe", anscombe), ("poisson", 1.0)):
        losses = (fidelity_of(kind).loss(ladder, y) * chances).sum(1)
        assert float(ladder[losses.argmin()]) == pytest.approx(share * mean, abs=0.005 * mean), kind


def test_a_fidelity_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'poison' is not a fidelity; did you mean poisson"):
        fidelity_of("poison")
