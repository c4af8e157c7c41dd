"""Every linear operator against its adjoint: <A x, y> = <x, A^H y>."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptymesh.physics import propagate, window_shifts
from ptymesh.physics.model import Intermediates, Model
from toy import make

WINDOW = (12, 15)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.complex128) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inner(a: torch.Tensor, b: torch.Tensor) -> complex:
    return complex((a.conj() * b).sum())


def agree(forward_y: complex, x_adjoint: complex, dtype: torch.dtype = torch.complex128) -> bool:
    # rounding of sums of a few thousand terms of order one
    return abs(forward_y - x_adjoint) <= (1e-11 if dtype == torch.complex128 else 2e-4) * abs(forward_y) + 1e-12


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_cut(dtype: torch.dtype) -> None:
    obj, y = random(2, 40, 50, dtype=dtype), random(5, 2, *WINDOW, seed=1, dtype=dtype)
    anchors = torch.tensor([[0, 0], [3, 4], [3, 5], [28, 35], [10, 20]])
    out = torch.zeros_like(obj)
    window_shifts.add_back(out, y, anchors)
    assert agree(inner(window_shifts.cut(obj, anchors, WINDOW), y), inner(obj, out), dtype)


def test_cut_is_a_window() -> None:
    obj, anchors = random(1, 40, 50), torch.tensor([[3, 4], [7, 9]])
    cut = window_shifts.cut(obj, anchors, WINDOW)
    assert torch.equal(cut[1, 0], obj[0, 7 : 7 + 12, 9 : 9 + 15])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=4))
def test_bilinear(fractions: list[tuple[float, float]]) -> None:
    f = torch.tensor(fractions, dtype=torch.float64)
    anchors = torch.tensor([[2, 3], [5, 5], [20, 30], [1, 1]])[: len(f)]
    obj, y = random(2, 40, 50), random(len(f), 2, *WINDOW, seed=1)
    out = torch.zeros_like(obj)
    window_shifts.add_back(out, *window_shifts.spread_bilinear(y, anchors, f))
    assert agree(inner(window_shifts.cut_bilinear(obj, anchors, f, WINDOW), y), inner(obj, out))


def test_bilinear_at_whole_pixels_is_a_cut() -> None:
    obj, anchors = random(1, 40, 50), torch.tensor([[3, 4]])
    moved = window_shifts.cut_bilinear(obj, anchors, torch.tensor([[1.0, -1.0]], dtype=torch.float64), WINDOW)
    assert torch.allclose(moved, window_shifts.cut(obj, anchors + torch.tensor([[1, -1]]), WINDOW))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_shift(dtype: torch.dtype) -> None:
    f = torch.tensor([[0.3, -0.4], [0.9, 0.1], [0.0, 0.5]], dtype=dtype.to_real())
    probe, y = random(2, *WINDOW, dtype=dtype), random(3, 2, *WINDOW, seed=1, dtype=dtype)
    assert agree(inner(window_shifts.shift(probe, f), y), inner(probe, window_shifts.shift(y, -f).sum(0)), dtype)


def test_shift_by_whole_pixels_is_a_roll() -> None:
    probe = random(2, *WINDOW)
    moved = window_shifts.shift(probe, torch.tensor([[2.0, -3.0]], dtype=torch.float64))[0]
    assert torch.allclose(moved, probe.roll((2, -3), (-2, -1)))


KERNELS = {
    "angular_spectrum": propagate.angular_spectrum_kernel,
    "fresnel": propagate.fresnel_kernel,
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    kernel = KERNELS[name](WINDOW, (5e-8, 6e-8), 1.2e-10, 3e-4, (0.01, -0.02))
    x, y = random(3, *WINDOW), random(3, *WINDOW, seed=1)
    forward = inner(propagate.apply_kernel(x, kernel), y)
    assert agree(forward, inner(x, propagate.apply_kernel_adjoint(y, kernel)))


def test_far_field_is_unitary() -> None:
    x = random(2, *WINDOW)
    assert torch.allclose(propagate.ifft(propagate.fft(x)), x)
    assert torch.linalg.norm(propagate.fft(x)) == pytest.approx(float(torch.linalg.norm(x)))


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum", "fresnel"])
@pytest.mark.parametrize("slices", [1, 3])
def test_model_is_linear_in_probe_and_in_each_slice(subpixel: str, propagation: str, slices: int) -> None:
    """The whole chain, sub-pixel, slices and detector, from the probe and from one slice to the detector."""
    toy = make(views=4, modes=2, subpixel=subpixel, propagation=propagation, slices=slices, varying=True)
    model, truth, every = toy.model, toy.truth, torch.arange(4)
    f = truth.fractions(every)
    y = random(4, 2, *truth.window, seed=1)

    def back(intermediates: Intermediates) -> tuple[torch.Tensor, torch.Tensor]:
        return model.forward_adjoint(intermediates, model.detect_adjoint(y, f))

    windows = model.windows(truth.object, truth.anchors, f, truth.window)
    intermediates = model.forward(windows, model.probes(truth.probe, f, truth.weights))
    to_windows, to_probes = back(intermediates)
    to_probe = model.unshifted(model.unshifted_terms(to_probes, f, truth.weights[:, 0]).sum(0))
    assert agree(inner(model.detect(intermediates.exit, f), y), inner(truth.probe, to_probe))
    out = torch.zeros_like(truth.object)
    window_shifts.add_back(out, *model.placed(to_windows, truth.anchors, f))
    for slice_ in range(slices):
        assert agree(inner(model.detect(intermediates.exit, f), y), inner(truth.object[slice_], out[slice_]))


def test_add_back_adds_where_windows_overlap() -> None:
    out = torch.zeros(1, 20, 20, dtype=torch.float64)
    window_shifts.add_back(out, torch.ones(2, 1, 5, 5, dtype=torch.float64), torch.tensor([[2, 2], [4, 4]]))
    assert out[0, 5, 5] == 2 and out[0, 2, 2] == 1 and out.sum() == 50


def test_fourier_subpixel_moves_every_mode() -> None:
    toy = make(views=3, modes=3)
    f = toy.truth.fractions(torch.arange(3))
    moved = Model().probes(toy.truth.probe, f, toy.truth.weights)
    for mode in range(3):
        assert torch.allclose(moved[:, mode], window_shifts.shift(toy.truth.probe[mode : mode + 1], f)[:, 0])
