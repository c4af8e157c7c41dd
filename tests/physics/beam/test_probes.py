"""Probes against known truths: pupils, foci, spreads, powers."""

import math

import numpy as np
import pytest
import torch

from ptymesh.errors import BadInput
from ptymesh.physics.beam import probes

SHAPE, PIXEL, WAVELENGTH = (96, 80), (20e-9, 24e-9), 0.15e-9
ANGLE = 0.4 * WAVELENGTH / (2 * 24e-9)


def spectrum(probe):
    return torch.fft.fft2(torch.fft.ifftshift(probe, dim=(-2, -1)), norm="ortho")


def angles():
    y = WAVELENGTH * torch.fft.fftfreq(SHAPE[0], PIXEL[0], dtype=torch.float64)
    x = WAVELENGTH * torch.fft.fftfreq(SHAPE[1], PIXEL[1], dtype=torch.float64)
    return y[:, None], x[None, :]


def peak(probe):
    return divmod(int(probe.abs().argmax()), probe.shape[1])


def half_power_radius_m(probe):
    y, x = ((torch.arange(n) - n // 2) * d for n, d in zip(probe.shape, PIXEL, strict=True))
    order = torch.argsort(torch.hypot(y[:, None], x[None, :]).flatten())
    inside = torch.cumsum((probe.abs() ** 2).flatten()[order], 0)
    r = torch.hypot(y[:, None], x[None, :]).flatten()[order]
    return float(r[inside >= 0.5 * inside[-1]][0])


def width_m(probe):
    density = (probe.abs() ** 2).numpy() / float((probe.abs() ** 2).sum())
    y, x = ((np.arange(n) - n // 2) * d for n, d in zip(probe.shape, PIXEL, strict=True))
    return math.sqrt((density * (y[:, None] ** 2 + x[None, :] ** 2)).sum())


def test_lens_recovers_its_aperture_and_sits_on_the_axis():
    probe = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE)
    assert probe.dtype == torch.complex128
    y, x = angles()
    inside = torch.hypot(y, x) <= ANGLE
    found = spectrum(probe)
    torch.testing.assert_close(found, inside.double() / inside.sum().double().sqrt() + 0j, atol=1e-14, rtol=0)
    assert peak(probe) == (SHAPE[0] // 2, SHAPE[1] // 2)


@pytest.mark.parametrize("name", ["C10", "C12", "C21", "C23", "C30", "C34", "C45"])
def test_aberration_is_its_term_of_the_series(name):
    n, m = int(name[1]), int(name[2])
    size, turn = 0.8 * WAVELENGTH / ANGLE ** (n + 1), 0.3 if m else 0.0
    value = size if m == 0 else [size, turn]
    probe = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {name: value})
    y, x = angles()
    a, phi = torch.hypot(y, x), torch.atan2(y, x)
    chi = 2 * math.pi / WAVELENGTH * size * a ** (n + 1) * torch.cos(m * (phi - turn)) / (n + 1)
    expected = (a <= ANGLE) * torch.exp(-1j * chi)
    torch.testing.assert_close(spectrum(probe) / spectrum(probe).abs().max(), expected, atol=1e-12, rtol=0)


def test_c10_is_the_distance_beyond_the_focus():
    """A lens of C10 = z is the focus propagated z downstream; the paraxial phase is exp(-i pi lambda z k^2)."""
    z = 40e-6
    focus = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE)
    beyond = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {"C10": z})
    # the paraxial phase differs from the exact one by pi z a^4 / (4 lambda), 2e-5 rad here
    torch.testing.assert_close(probes.defocused(focus, PIXEL, WAVELENGTH, z), beyond, atol=1e-5, rtol=0)
    assert not torch.allclose(probes.defocused(focus, PIXEL, WAVELENGTH, -z), beyond, atol=1e-3)
    back = probes.defocused(beyond, PIXEL, WAVELENGTH, -z)
    torch.testing.assert_close(back, focus, atol=1e-5, rtol=0)


def test_c01_moves_the_beam_against_the_gradient_of_chi():
    """P(r) = sum_k exp(2 pi i k.r - i chi): chi = 2 pi k.s puts the focus at r = s, so C01 > 0 moves it along x."""
    shift_px = 5
    probe = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {"C01": [shift_px * PIXEL[1], 0.0]})
    assert peak(probe) == (SHAPE[0] // 2, SHAPE[1] // 2 + shift_px)


def test_zone_plate_is_an_annulus_focused_at_its_half_angle():
    outer, diameter = WAVELENGTH / (2 * ANGLE), 100e-6
    probe = probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, outer, diameter, central_stop_m=40e-6)
    y, x = angles()
    a = torch.hypot(y, x)
    lit = spectrum(probe).abs() > 1e-10
    assert torch.equal(lit, (a <= ANGLE * (1 + 1e-12)) & (a >= 0.4 * ANGLE))
    full = probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, outer, diameter)
    torch.testing.assert_close(full, probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE), atol=1e-12, rtol=0)


def test_defocus_widens_by_the_half_angle():
    z = 450e-6
    outer = WAVELENGTH / (2 * ANGLE)
    for defocus in (z, -z):
        probe = probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, outer, 100e-6, defocus_m=defocus)
        # a uniformly filled cone of half-angle a holds half its power within z a / sqrt 2, up to diffraction (7 % here)
        assert half_power_radius_m(probe) == pytest.approx(z * ANGLE / math.sqrt(2), rel=0.1)
    under = probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, outer, 100e-6, defocus_m=z)
    lens = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {"C10": -z})
    torch.testing.assert_close(under, lens, atol=1e-12, rtol=0)


def test_kb_mirror_is_a_sinc_on_each_axis():
    half = (0.5 * ANGLE, 0.8 * ANGLE)
    focal = (0.1, 0.05)
    aperture = (2 * half[0] * focal[0], 2 * half[1] * focal[1])
    probe = probes.kb_mirror(SHAPE, PIXEL, WAVELENGTH, aperture, focal)
    for axis in (0, 1):
        profile = probe.select(1 - axis, SHAPE[1 - axis] // 2).numpy().real
        r = (np.arange(SHAPE[axis]) - SHAPE[axis] // 2) * PIXEL[axis]
        # the rectangle is whole pixels of the pupil: its width there, not the nominal one
        step = WAVELENGTH / (SHAPE[axis] * PIXEL[axis])
        pixels = 2 * int(half[axis] / step) + 1
        near = np.abs(r) < 3 * WAVELENGTH / (2 * half[axis])
        expected = np.sinc(pixels * step * r / WAVELENGTH)
        np.testing.assert_allclose((profile / profile.max())[near], expected[near], atol=0.05)
    astigmatic = probes.kb_mirror(SHAPE, PIXEL, WAVELENGTH, aperture, focal, defocus_m=(100e-6, 0.0))
    line = (astigmatic.abs() ** 2).sum(0) / (astigmatic.abs() ** 2).sum()
    torch.testing.assert_close(line, (probe.abs() ** 2).sum(0) / (probe.abs() ** 2).sum(), atol=1e-12, rtol=0)
    assert width_m(astigmatic) > width_m(probe)


def test_pinhole_diffracts_into_an_airy_disc():
    diameter = 0.6e-6
    contact = probes.pinhole(SHAPE, PIXEL, WAVELENGTH, diameter)
    lit = float((contact.abs() > contact.abs().max() / 2).sum()) * PIXEL[0] * PIXEL[1]
    assert lit == pytest.approx(math.pi * diameter**2 / 4, rel=0.03)
    far = probes.pinhole(SHAPE, PIXEL, WAVELENGTH, diameter, distance_m=1.2e-3)
    assert width_m(far) > 1.05 * width_m(contact)
    assert float((far.abs() ** 2).sum()) == pytest.approx(1)
    # up to n d^2 / lambda no frequency is beyond the band limit, and there is a way back
    near = probes.pinhole(SHAPE, PIXEL, WAVELENGTH, diameter, distance_m=0.2e-3)
    torch.testing.assert_close(probes.defocused(near, PIXEL, WAVELENGTH, -0.2e-3), contact, atol=1e-12, rtol=0)


def test_mean_pattern_gives_a_probe_of_that_far_field():
    truth = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE) * 30
    pattern = spectrum(truth).abs() ** 2
    probe = probes.from_mean_pattern(pattern)
    torch.testing.assert_close(probe, truth, atol=1e-11, rtol=0)


@pytest.mark.parametrize("powers", [None, (0.5, 0.2, 0.15, 0.1, 0.05)])
def test_modes_are_orthogonal_and_have_the_stated_powers(powers):
    first = 7 * probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {"C10": 50e-6})
    modes = probes.extra_modes(first, 5, powers, seed=3)
    gram = torch.einsum("ahw,bhw->ab", modes.conj(), modes)
    expected = 49 * torch.tensor(powers or (0.92, 0.02, 0.02, 0.02, 0.02), dtype=torch.float64)
    torch.testing.assert_close(gram, torch.diag(expected) + 0j, atol=1e-10, rtol=0)
    torch.testing.assert_close(modes[0] / modes[0].abs().max(), first / first.abs().max(), atol=1e-12, rtol=0)
    assert torch.equal(modes, probes.extra_modes(first, 5, powers, seed=3))
    assert not torch.allclose(modes[1], probes.extra_modes(first, 5, powers, seed=4)[1])


def test_given_modes_are_kept_and_completed():
    first = probes.aberrated(SHAPE, PIXEL, WAVELENGTH, ANGLE, {"C10": 50e-6})
    three = probes.extra_modes(first, 3, (0.6, 0.3, 0.1))
    five = probes.extra_modes(three, 5)
    gram = torch.einsum("ahw,bhw->ab", five.conj(), five)
    expected = torch.tensor((0.6 * 0.96, 0.3 * 0.96, 0.1 * 0.96, 0.02, 0.02), dtype=torch.float64)
    torch.testing.assert_close(gram, torch.diag(expected) + 0j, atol=1e-10, rtol=0)
    two = probes.extra_modes(three, 2)
    torch.testing.assert_close((two.abs() ** 2).sum((1, 2)), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


def test_rescaled_counts_every_mode():
    probe = torch.randn(3, 8, 8, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    assert float((probes.rescaled(probe, 5e4).abs() ** 2).sum()) == pytest.approx(5e4)


lens = (SHAPE, PIXEL, WAVELENGTH, ANGLE)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: probes.aberrated(SHAPE, PIXEL, WAVELENGTH, 0.1), "semi-angle is 0.1 rad"),
        (lambda: probes.aberrated(SHAPE, PIXEL, WAVELENGTH, 1e-9), "semi-angle is 1e-09 rad"),
        (lambda: probes.aberrated(*lens, {"C10": 2e-3}), "larger window"),
        (lambda: probes.aberrated(*lens, {"C30": 1e6}), "larger window"),
        (lambda: probes.aberrated(*lens, {"C11": 1e-9}), "no aberration C11"),
        (lambda: probes.aberrated(*lens, {"defocus": 1e-9}), "'defocus'"),
        (lambda: probes.aberrated(*lens, {"C12": [1e-9, 0.1, 2]}), "C12 is"),
        (lambda: probes.aberrated(*lens, {"C10": [1e-9, 0.1]}), "C10 is"),
        (lambda: probes.aberrated(*lens, {"C10": math.nan}), "C10 is nan"),
        (lambda: probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, 60e-9, 1e-4, 2e-4), "central stop is 0.0002"),
        (lambda: probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, 1e-9, 1e-4), "half-angle"),
        (lambda: probes.zone_plate(SHAPE, PIXEL, WAVELENGTH, 0.0, 1e-4), "outer zone width is 0.0"),
        (lambda: probes.kb_mirror(SHAPE, PIXEL, WAVELENGTH, (1e-4, -1e-4), (0.1, 0.1)), "in x is -0.0001"),
        (lambda: probes.pinhole(SHAPE, PIXEL, WAVELENGTH, 1e-5), "pinhole of 1e-05 m"),
        (lambda: probes.pinhole(SHAPE, PIXEL, WAVELENGTH, 0.6e-6, 1.0), "wide"),
        (lambda: probes.defocused(probes.aberrated(*lens), PIXEL, WAVELENGTH, 1e-2), "shorter distance"),
        (
            lambda: probes.from_mean_pattern(torch.zeros(8, 8)),
            "no light in the mean pattern",
        ),
        (lambda: probes.rescaled(torch.zeros(1, 8, 8, dtype=torch.complex128), 1.0), "power is 0.0"),
        (lambda: probes.rescaled(torch.ones(1, 8, 8, dtype=torch.complex128), 0.0), "power is to be 0.0"),
        (lambda: probes.extra_modes(probes.aberrated(*lens), 2, (0.5, 0.3)), "sum is 1"),
        (lambda: probes.extra_modes(probes.aberrated(*lens), 2, (1.0,)), "1 mode powers for 2"),
        (lambda: probes.extra_modes(torch.ones(2, 2, dtype=torch.complex128), 9), "ask for fewer"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_a_sentence(call, words):
    with pytest.raises(BadInput, match=words) as refused:
        call()
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
