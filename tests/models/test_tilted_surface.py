"""Surfaces that lean: places and light of pixels against exact transforms, the angle found, files and flips."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, far_field
from ptymesh.io.load import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import Measurement
from ptymesh.models.tilted_surface import TiltedSurface
from ptymesh.physics.detector.surface import greatest_bend, seen_pixels
from ptymesh.physics.operators import Placed
from ptymesh.run.simulate_file import write
from ptymesh.simulate import Simulated, checked, simulate

#: A laboratory source at 13.5 nm, to 15 degrees.
LENGTHS: dict[str, Any] = {"energy_eV": 92.0, "pixel_m": 25e-9, "detector_pixel_m": 1e-4}


def leaning(angle: tuple[float, float], n: int = 64) -> Geometry:
    return far_field((n, n), 13.5e-9, 64e-4 * 25e-9 / 13.5e-9, (1e-4, 1e-4), surface_deg=angle)


def exact(psi: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Return the light of each pixel, from its scattering vector, written out anew; zero frequency in the middle.

    It is that of the frequencies which a pixel sees, whose area comes from central differences.
    """
    assert geometry.distance_m and geometry.detector_pixel_m and geometry.object_pixel_m and geometry.wavelength_m
    h, w = geometry.shape
    lean = np.deg2rad(geometry.surface_deg)
    # axes along the surface (y, x), in the frame of the reflected beam, which goes along z
    along_y = np.array([math.cos(lean[0]), 0, -math.sin(lean[0])])
    along_x = np.array([0, math.cos(lean[1]), -math.sin(lean[1])])

    def frequencies(dy: float, dx: float) -> tuple[np.ndarray, np.ndarray]:
        y, x = np.meshgrid(np.arange(h) - h // 2 + dy, np.arange(w) - w // 2 + dx, indexing="ij")
        to = np.stack([y * geometry.detector_pixel_m[0], x * geometry.detector_pixel_m[1], 0 * y + geometry.distance_m])
        s = to / np.linalg.norm(to, axis=0) - np.array([0, 0, 1.0])[:, None, None]
        f = [np.tensordot(axis, s, 1) / geometry.wavelength_m for axis in (along_y, along_x)]
        return f[0] * geometry.object_pixel_m[0], f[1] * geometry.object_pixel_m[1]  # cycles per pixel

    (a, b), (c, d) = ((frequencies(*step), frequencies(*(-e for e in step))) for step in ((1e-3, 0), (0, 1e-3)))
    dy, dx = [(p - q) / 2e-3 for p, q in zip(a, b, strict=True)], [(p - q) / 2e-3 for p, q in zip(c, d, strict=True)]
    area = (dy[0] * dx[1] - dy[1] * dx[0]) * h * w
    fy, fx = frequencies(0, 0)
    rows = np.exp(-2j * np.pi * fy[..., None] * (np.arange(h) - h // 2))
    columns = np.exp(-2j * np.pi * fx[..., None] * (np.arange(w) - w // 2))
    wave = np.einsum("yxa,ab,yxb->yx", rows, psi, columns, optimize=True) / math.sqrt(h * w)
    return np.asarray(np.abs(wave) ** 2 * area)


def misfit(a: np.ndarray, b: np.ndarray) -> float:
    return float(((np.sqrt(a) - np.sqrt(b)) ** 2).sum() / b.sum())


@pytest.mark.parametrize("angle", [(0.0, 0.0), (0.0, 60.0), (0.0, -45.0), (50.0, 0.0)])
def test_patterns_are_those_of_exact_transforms(angle: tuple[float, float]) -> None:
    """Of an exit wave of a quarter of the window, to a tenth of what would be left without the piece, or less."""
    geometry = leaning(angle)
    y, x = np.mgrid[-32:32, -32:32]
    feature = np.random.default_rng(1).normal(size=(64, 64))
    psi = np.exp(-((np.hypot(y, x) / 8) ** 4) + 0.03j * (y**2 + x**2) + 0.5j * feature)
    S = np.abs(np.fft.fftshift(np.fft.fft2(psi, norm="ortho"))) ** 2
    piece = Placed.of(TiltedSurface(), geometry, torch.complex128, "cpu")
    values = {"surface_angle": torch.tensor(angle[0] or angle[1], dtype=torch.float64)}
    found = piece.operator.forward(torch.from_numpy(np.fft.ifftshift(S))[None], values, piece.tables)[0].numpy()
    seen = np.fft.fftshift(seen_pixels(geometry))
    wanted = exact(psi, geometry)[seen]
    left = misfit(np.fft.fftshift(found)[seen], wanted)
    assert left < 5e-4 and left < misfit(S[seen], wanted) / 10


def test_pixels_that_see_no_frequency_of_the_window_are_masked() -> None:
    assert seen_pixels(leaning((0.0, 0.0))).all()
    seen = np.fft.fftshift(seen_pixels(leaning((0.0, 60.0))))
    assert 0.85 < seen.mean() < 0.99 and not seen[:, -1].any() and seen[:, 1].all()
    steep = np.fft.fftshift(seen_pixels(leaning((0.0, -80.0))))
    assert not steep[:, -1].any(), "they look from below the surface"


def leaning_scan(angle: float, **options: Any) -> Simulated:
    return simulate(
        views=60, window=64, surface_deg=(0.0, angle), optics={"tilted_surface": True}, seed=1, **LENGTHS, **options
    )


def plain(scan: Measurement) -> Measurement:
    """The same patterns, of which it is not known that they are of a surface."""
    return replace(scan, geometry=replace(scan.geometry, surface_deg=(0.0, 0.0)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["adam", pytest.param("rpie", marks=pytest.mark.long)])
def test_the_angle_is_found(engine: str) -> None:
    """From a degree off, to 0.1; with the piece, a quarter is left of what is without."""
    made = leaning_scan(60.0, photons_per_view=1e6)
    base = {"object": True, "probe": True} if engine == "adam" else {}
    kind = {"adam": pm.Adam, "rpie": pm.RPIE}[engine]
    ends = {}
    for name, optics, unknowns in (
        ("without", {}, base),
        ("wrong", {"tilted_surface": {"start": {"surface_angle": 59.0}}}, base),
        ("refined", {"tilted_surface": {"start": {"surface_angle": 59.0}}}, base | {"surface_angle": True}),
    ):
        scan = made.measurement if optics else plain(made.measurement)
        recon = pm.Reconstruction(scan, optics=optics)
        ends[name] = [report.residual for report in recon.run(kind(epochs=20, batch=20, unknowns=unknowns))][-1]
    assert float(recon.state.estimate.others["surface_angle"]) == pytest.approx(60, abs=0.1)
    assert ends["refined"] < ends["wrong"] < ends["without"] and ends["refined"] < 0.25 * ends["without"]


def test_lengths_are_on_the_surface(tmp_path: Path) -> None:
    """A pixel is longer along the lean; flips turn the lean round, and exchanged axes exchange it."""
    write(checked(views=20, window=32, **LENGTHS), tmp_path / "scan.cxi")

    def read(**options: Any) -> Geometry:
        return load_measurement(DataOptions.parse({"path": tmp_path / "scan.cxi", **options}, "data")).geometry

    plain, leant = read(), read(surface_deg=[0, 60])
    assert plain.object_pixel_m is not None and leant.object_pixel_m is not None
    assert leant.object_pixel_m == pytest.approx((plain.object_pixel_m[0], 2 * plain.object_pixel_m[1]))
    assert read(surface_deg=[0, 60], flip_x=True).surface_deg == (0.0, -60.0)
    assert read(surface_deg=[0, 60], flip_y=True).surface_deg == (0.0, 60.0)
    turned = read(surface_deg=[0, 60], transpose=True)
    assert turned.surface_deg == (60.0, 0.0) and turned.object_pixel_m == pytest.approx(leant.object_pixel_m[::-1])
    scan = load_measurement(DataOptions.parse({"path": tmp_path / "scan.cxi", "surface_deg": [0, 60]}, "data"))
    assert np.array_equal(scan.mask, seen_pixels(scan.geometry)) and not scan.mask.all()


@pytest.mark.parametrize("angle", [[10, 10], [0, 89], [0, "steep"]])
def test_angles_that_there_are_not(tmp_path: Path, angle: list[Any]) -> None:
    write(checked(views=20, window=32), tmp_path / "scan.cxi")
    with pytest.raises(BadInput, match="surface"):
        load_measurement(DataOptions.parse({"path": tmp_path / "scan.cxi", "surface_deg": angle}, "data"))


def test_bent_patterns_need_the_piece() -> None:
    """At 60 degrees and 15 degrees of diffraction they are refused without it, at a thirtieth of these they are not."""
    scan = leaning_scan(60.0).measurement
    with pytest.raises(BadInput, match=r"surface_deg is \[0, 60\], .* up to \d+(\.\d+)? pixels .*tilted_surface: true"):
        pm.Reconstruction(scan)
    pm.Reconstruction(scan, optics={"tilted_surface": True})
    assert scan.geometry.distance_m is not None
    far = replace(scan.geometry, distance_m=30 * scan.geometry.distance_m)
    assert greatest_bend(far) < 1 < greatest_bend(scan.geometry)
    pm.Reconstruction(replace(scan, geometry=far))


def test_what_it_needs_is_asked_for() -> None:
    scan = leaning_scan(0.0).measurement
    with pytest.raises(BadInput, match=r"data\.distance_m and data\.detector_pixel_m"):
        pm.Reconstruction(
            replace(scan, geometry=replace(scan.geometry, distance_m=None)), optics={"tilted_surface": True}
        )
    near = simulate(kind="near", views=20, window=32).measurement
    with pytest.raises(BadInput, match="far fields"):
        pm.Reconstruction(near, optics={"tilted_surface": True})
    with pytest.raises(BadInput, match="far fields alone"):
        replace(near.geometry, surface_deg=(0.0, 10.0))
