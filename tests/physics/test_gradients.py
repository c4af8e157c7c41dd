"""Every gradient against a central difference, in float64: dL/dt along d is 2 Re <dL/d conj(x), d>, real for reals."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ptymesh.physics import fidelity, window_shifts
from ptymesh.physics.fidelity import Data
from ptymesh.physics.model import power
from toy import Toy, make

VIEWS = 5
CASES = [
    pytest.param(dict(subpixel=s, propagation=p, slices=n, fidelity=k), id=f"{s}-{p}-{n}-{k}")
    for s in ("fourier", "bilinear", "none")
    for p, n in (("far_field", 1), ("far_field", 2), ("angular_spectrum", 1), ("fresnel", 1), ("fresnel", 2))
    for k in ("amplitude", "poisson", "intensity")
]


def disturbed(toy: Toy) -> Toy:
    """An estimate away from the truth, so that no gradient vanishes."""
    rng = torch.Generator().manual_seed(1)
    truth = toy.truth
    obj = truth.object + 0.1 * torch.randn(truth.object.shape, generator=rng, dtype=truth.object.dtype)
    probe = truth.probe * (1 + 0.1 * torch.randn(truth.probe.shape, generator=rng, dtype=truth.probe.dtype))
    moved = truth.positions + 0.2 * (torch.rand(truth.positions.shape, generator=rng, dtype=torch.float64) - 0.5)
    opr = 0.3 * truth.probe[:1].flip(0, 1).repeat(2, 1, 1) * torch.tensor([1, 1j])[:, None, None]
    weights = torch.cat((truth.weights, torch.randn(VIEWS, 2, generator=rng, dtype=torch.float64)), dim=1)
    changes = dict(object=obj, probe=probe, positions=moved, opr=opr, weights=weights)
    return Toy(toy.measurement, toy.model, replace(truth, **changes))


def data(toy: Toy, background: torch.Tensor) -> Data:
    mask = torch.ones(toy.truth.window, dtype=torch.bool)
    mask[3, 4] = False
    counts = torch.as_tensor(toy.measurement.patterns.read(slice(None)))  # type: ignore[arg-type]
    counts[2, 5, 6] = -1  # no data in this view
    return Data.of(counts, mask, background, torch.float64)


def loss(toy: Toy, **changes: torch.Tensor) -> torch.Tensor:
    e, every = replace(toy.truth, **changes), torch.arange(VIEWS)
    S = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, None, e.opr)
    return fidelity.value(toy.model.fidelity, S, data(toy, e.background)).sum()


def slope_of(along: Callable[[float], torch.Tensor], step: float = 1e-6) -> float:
    return float((along(step) - along(-step)) / (2 * step))


@pytest.mark.parametrize("case", CASES)
def test_gradients(case: dict) -> None:
    toy = disturbed(make(views=VIEWS, window=(16, 18), modes=2, background=0.5, varying=True, counts=3e3, **case))
    model, e = toy.model, toy.truth
    every = torch.arange(VIEWS)
    f = e.fractions(every)
    intermediates = model.forward(
        model.windows(e.object, e.anchors, f, e.window), model.probes(e.probe, f, e.weights, e.opr)
    )
    detected = model.detect(intermediates.exit, f)
    S = power(detected)
    slope = fidelity.slope(model.fidelity, S, data(toy, e.background))
    g = model.detect_adjoint(detected * slope[:, None], f)
    to_windows, to_probes = model.forward_adjoint(intermediates, g)
    to_object = torch.zeros_like(e.object)
    window_shifts.add_back(to_object, *model.placed(to_windows, e.anchors, f))
    to_probe = model.unshifted(model.unshifted_terms(to_probes, f, e.weights[:, 0]).sum(0))
    rng = torch.Generator().manual_seed(2)

    def check(name: str, gradient: torch.Tensor, direction: torch.Tensor) -> None:
        unknown = getattr(e, name)
        numeric = slope_of(lambda t: loss(toy, **{name: unknown + t * direction}))
        factor = 2 if gradient.is_complex() else 1
        analytic = factor * float((gradient.conj() * direction).real.sum())
        # central differences of a loss of order 1e3 to 1e6: cancellation limits them to a few digits
        assert numeric == pytest.approx(analytic, rel=2e-5), name

    for l_ in range(len(e.object)):
        direction = torch.zeros_like(e.object)
        direction[l_] = torch.randn(e.object[l_].shape, generator=rng, dtype=e.object.dtype)
        check("object", to_object, direction)
    for m in range(len(e.probe)):
        direction = torch.zeros_like(e.probe)
        direction[m] = torch.randn(e.probe[m].shape, generator=rng, dtype=e.probe.dtype)
        check("probe", to_probe, direction)
    for k in range(len(e.opr)):
        direction = torch.zeros_like(e.opr)
        direction[k] = torch.randn(e.opr[k].shape, generator=rng, dtype=e.opr.dtype)
        shares = e.weights[:, 1:].unbind(1)
        by_opr = [model.unshifted(model.unshifted_terms(to_probes[:, :1], f, share).sum(0)) for share in shares]
        check("opr", torch.cat(by_opr), direction)
    to_weights = 2 * model.weights_adjoint(to_probes, e.probe, f, e.opr)
    check("weights", to_weights, torch.randn(e.weights.shape, generator=rng, dtype=torch.float64))
    check("background", slope.sum(0), torch.rand(e.window, generator=rng, dtype=torch.float64))
    if model.subpixel == "none":
        return
    to_positions = torch.stack(
        [
            2 * (model.position_derivative(e.object, e.anchors, f, intermediates, a).conj() * g).real.sum((1, 2, 3))
            for a in (0, 1)
        ],
        dim=1,
    )
    for axis in (0, 1):
        direction = torch.zeros_like(e.positions)
        direction[:, axis] = torch.rand(VIEWS, generator=rng, dtype=torch.float64) - 0.5
        check("positions", to_positions, direction)
