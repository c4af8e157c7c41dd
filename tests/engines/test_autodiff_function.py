"""The hand-written backward pass of the forward model against finite differences, and in a loss of a user's own."""

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines.autodiff_function import intensities
from ptymesh.problem import Batch
from toy import make, relative


@pytest.mark.parametrize(
    "case",
    [
        dict(modes=2, background=0.5),
        dict(subpixel="bilinear"),
        dict(slices=2, propagation="angular_spectrum"),
    ],
    ids=str,
)
def test_gradcheck(case: dict) -> None:
    toy = make(views=3, window=(6, 8), counts=50.0, **case)
    e, problem = toy.start(position_error=0.3), toy.problem()
    (chunk,) = problem.loader.chunks(e, np.arange(3))
    rng = torch.Generator().manual_seed(1)
    obj = e.object + 0.3 * torch.randn(e.object.shape, generator=rng, dtype=e.object.dtype)
    opr = 0.3 * e.probe[:1].flip(-1)
    weights = torch.cat((chunk.weights, torch.full_like(chunk.weights, 0.4)), dim=1)
    leaves = [t.clone().requires_grad_() for t in (obj, e.probe, chunk.fractions, weights, e.background, opr)]

    def model(obj, probe, fractions, weights, background, opr):  # type: ignore[no-untyped-def]
        return intensities(
            problem.model, chunk, obj, probe, fractions=fractions, weights=weights, background=background, opr=opr
        )

    # fast: along random directions, instead of one pixel of the object after the other
    assert torch.autograd.gradcheck(model, leaves, eps=1e-6, rtol=1e-3, atol=1e-5, fast_mode=True)
    expected = toy.model.intensity(obj, e.probe, chunk.anchors, chunk.fractions, weights, e.background, opr)
    assert relative(model(*leaves).detach(), expected) < 1e-14


def own_gradient(world: World) -> tuple[np.ndarray, np.ndarray]:
    """A user's own parametrisation and loss: object exp(i phi), absolute difference of amplitudes."""
    toy = make(views=17, modes=2)
    e, problem = toy.start(), toy.problem(world)
    problem.begin_epoch(e)
    phase = torch.zeros_like(e.object.real).requires_grad_()
    probe = e.probe.clone().requires_grad_()
    phase.grad, probe.grad = torch.zeros_like(phase), torch.zeros_like(probe)
    batch = Batch(np.arange(0, 17, 2))
    for chunk in problem.loader.chunks(e, batch.views):
        I = intensities(problem.model, chunk, torch.polar(torch.ones_like(phase), phase), probe)
        (I.sqrt() - chunk.data.y.sqrt()).abs().sum().backward()
    by_phase, by_probe = world.sum(phase.grad, probe.grad)
    return by_phase.numpy(), by_probe.numpy()


def test_local_sums_add_up_to_the_whole(ranks) -> None:  # type: ignore[no-untyped-def]
    one = own_gradient(Solo())
    assert np.linalg.norm(one[0]) > 0
    for other in ranks(3, own_gradient):
        assert relative(other[0], one[0]) < 1e-13 and relative(other[1], one[1]) < 1e-13
