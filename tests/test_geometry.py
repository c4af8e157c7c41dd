"""Wavelengths and pixel sizes against textbook numbers."""

import pytest

from ptymesh import geometry
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, electron_wavelength_m, far_field, near_field, photon_wavelength_m


def test_wavelengths() -> None:
    assert photon_wavelength_m(12398.4198) == pytest.approx(1e-10, rel=1e-6)
    # Reimer & Kohl, Transmission Electron Microscopy, table 2.1
    assert electron_wavelength_m(300e3) == pytest.approx(1.9687e-12, rel=1e-4)
    assert electron_wavelength_m(100e3) == pytest.approx(3.7014e-12, rel=1e-4)


@pytest.mark.parametrize("radiation", ["photon", "electron"])
def test_energy_is_the_wavelength_s(radiation: geometry.Radiation) -> None:
    make = photon_wavelength_m if radiation == "photon" else electron_wavelength_m
    g = Geometry((8, 8), radiation=radiation, wavelength_m=make(80e3))
    assert g.energy_eV == pytest.approx(80e3)


def test_far_field_pixel() -> None:
    g = far_field((100, 200), 1e-10, 2.0, (50e-6, 75e-6))
    assert g.object_pixel_m == pytest.approx((1e-10 * 2 / (100 * 50e-6), 1e-10 * 2 / (200 * 75e-6)))


def test_near_field_with_a_focus() -> None:
    """Fresnel scaling theorem: Mag = (z1 + z2) / z1."""
    g = near_field((100, 100), 1e-10, 0.9, (1e-6, 1e-6), focus_distance_m=0.1)
    assert g.magnification == pytest.approx(10)
    assert g.object_pixel_m == pytest.approx((1e-7, 1e-7))
    assert g.effective_distance_m == pytest.approx(0.09)


def test_crop_makes_far_field_pixels_coarser_and_binning_does_not() -> None:
    g = far_field((128, 128), 1e-10, 2.0, (50e-6, 50e-6))
    assert g.object_pixel_m is not None
    cropped, binned = g.rewindowed((64, 64)), g.rewindowed((64, 64), binning=2)
    assert cropped.object_pixel_m == pytest.approx((2 * g.object_pixel_m[0],) * 2)
    assert binned.object_pixel_m == pytest.approx(g.object_pixel_m)
    assert binned.detector_pixel_m == pytest.approx((100e-6, 100e-6))
    assert binned == far_field((64, 64), 1e-10, 2.0, (100e-6, 100e-6))


def test_binning_makes_near_field_pixels_coarser() -> None:
    g = near_field((128, 128), 1e-10, 0.1, (1e-6, 1e-6)).rewindowed((32, 64), binning=2)
    assert g.object_pixel_m == pytest.approx((2e-6, 2e-6)) and g.shape == (32, 64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: photon_wavelength_m(-1),
        lambda: electron_wavelength_m(0),
        lambda: far_field((8, 8), 1e-10, 0.0, (1e-6, 1e-6)),
        lambda: far_field((8, 8), 1e-10, 1.0, (1e-6, -1e-6)),
        lambda: near_field((8, 8), 1e-10, 1.0, (1e-6, 1e-6), focus_distance_m=-1),
        lambda: Geometry((8, 8), "fresnel"),
        lambda: Geometry((8, 8), wavelength_m=float("nan")),
    ],
)
def test_nonsense_is_refused_with_its_value(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match=r"-1|0|nan|None"):
        make()


@pytest.mark.parametrize("pixel", [1e-300, 1e9])
def test_lengths_that_cannot_be(pixel: float) -> None:
    with pytest.raises(BadInput, match=r"detector pixel is 1e[-+]\d+ m, which cannot be; give one between 1e-15 and"):
        Geometry((8, 8), detector_pixel_m=(1e-6, pixel))
