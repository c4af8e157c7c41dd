"""Situations that users of other programs have reported, which need a reconstruction: each with its right value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile

import ptymesh as pm
from ptymesh.compare import object_error
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io import load_measurement
from ptymesh.io.exchange import convert
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import ArraySource, Measurement

PIXEL = 1e-8


def probe_of(window: int) -> np.ndarray:
    """Return a defocused spot (h, w) with its axis at h//2, w//2."""
    r2 = (np.arange(window) - window // 2)[:, None] ** 2 + (np.arange(window) - window // 2) ** 2
    return np.asarray(300 * np.exp(-r2 / (2 * (window / 9) ** 2) + 0.03j * r2))


def scan_of(obj: np.ndarray, corners: np.ndarray, probe: np.ndarray) -> Measurement:
    """Return the scan of an object (H, W) at whole pixels (N, 2), without noise."""
    h = len(probe)
    waves = np.stack([probe * obj[y : y + h, x : x + h] for y, x in corners])
    counts = np.abs(np.fft.fft2(np.fft.ifftshift(waves, axes=(1, 2)), norm="ortho")) ** 2
    return Measurement(
        patterns=ArraySource(counts.astype(np.float32)),
        positions=corners.astype(float),
        geometry=Geometry((h, h), "far_field", "photon", 1e-10, object_pixel_m=(PIXEL, PIXEL)),
        mask=np.ones((h, h), bool),
        probe=probe[None],
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("window", [32, 33])
@pytest.mark.parametrize("size", [48, 49])
def test_a_point_lies_where_the_positions_say(window: int, size: int, tmp_path: Path) -> None:
    """The point is at zero, in the middle of the view whose position is zero: in the result, in CXI and in TIFF."""
    steps = np.arange(-1, 2) * 6
    corners = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) + (size - window) // 2
    middle = (size - window) // 2 + window // 2
    r2 = (np.arange(size) - middle)[:, None] ** 2 + (np.arange(size) - middle) ** 2
    scan = scan_of(1 - 0.7 * np.exp(-r2 / 4.0), corners, probe_of(window))
    scan = replace(scan, positions=scan.positions - corners.mean(axis=0))
    result = pm.reconstruct(scan, pm.RPIE(epochs=30, batch=3, probe={"frozen": 30}), seed=1)
    result.save(tmp_path / "r.h5")
    convert.write_result(result, tmp_path / "r.cxi", convert.FORMATS["cxi"])
    convert.write_result(result, tmp_path / "r.tif", convert.FORMATS["tiff"])
    amplitude = tifffile.imread(tmp_path / "r.tif").reshape(-1, *result.object.shape[1:])[0]
    np.testing.assert_allclose(amplitude, np.abs(result.object[0]), rtol=1e-6)
    for found in (pm.Result.load(tmp_path / "r.h5"), convert.read_result(tmp_path / "r.cxi")[0]):
        dip = np.clip(0.9 - np.abs(found.object[0]), 0, None)
        place = np.array([(dip * index).sum() / dip.sum() for index in np.indices(dip.shape)])
        assert found.positions_m is not None
        at_zero = found.positions_px - found.positions_m / PIXEL + window // 2
        np.testing.assert_allclose(at_zero, np.broadcast_to(place, at_zero.shape), atol=0.05)


def smooth_phase(*shape: int) -> np.ndarray:
    """Return a smooth random phase object."""
    noise = np.random.default_rng(5).normal(size=shape)
    f = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"))
    smooth = np.fft.ifft2(np.fft.fft2(noise) * np.exp(-80 * f**2)).real
    return np.asarray(np.exp(0.4j * smooth / smooth.std()))


def raster(rows: int, columns: int, *steps: int) -> np.ndarray:
    """Return corners (N, 2) of windows in rows."""
    lines = np.arange(rows) * steps[0], np.arange(columns) * steps[1]
    return np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 2)


@pytest.fixture(scope="module")
def phase_scan() -> tuple[Measurement, np.ndarray]:
    """A raster of 6 x 9 over a smooth random phase object; and that object."""
    obj = smooth_phase(72, 96)
    return scan_of(obj, raster(6, 9, 6, 6), probe_of(32)), obj


def error_of(result: pm.Result, obj: np.ndarray) -> float:
    """Return the error of the object between the middles of the outermost views, when both are aligned."""
    half = result.probe.shape[-1] // 2
    corners = np.rint(result.positions_px).astype(int)
    (y, x), (h, w) = corners[0], np.ptp(corners, axis=0)
    found = result.object[0][y + half : y + half + h, x + half : x + half + w]
    return object_error(found, obj[half : half + h, half : half + w])


def test_a_cross_between_four_chips() -> None:
    """Two rows and columns without counts around the direct beam cost little, and are masked if nobody does.

    A sixteenth of the pixels is lost, with a larger share of the counts; 200 epochs of LSQML end 5 % apart.
    """
    obj, line = smooth_phase(120, 144), np.ones(64, bool)
    line[[0, 63]] = False  # the zero frequency is at the corner
    mask = np.logical_and.outer(line, line)
    scan = scan_of(obj, raster(6, 8, 8, 8), probe_of(64))
    counts = scan.patterns.read(np.arange(scan.views)).astype(float)
    counts = np.random.default_rng(1).poisson(counts * 3e4 / counts.sum(axis=(1, 2)).mean()).astype(np.float32)
    whole = replace(scan, patterns=ArraySource(counts))
    crossed = replace(scan, patterns=ArraySource(np.where(mask, counts, 0).astype(np.float32)))
    engine = pm.RPIE(epochs=20, batch=8)
    best = error_of(pm.reconstruct(whole, engine, seed=2), obj)
    masked = pm.reconstruct(replace(crossed, mask=mask), engine, seed=2)
    assert best < 0.08 and error_of(masked, obj) < 1.25 * best
    np.testing.assert_array_equal(pm.reconstruct(crossed, engine, seed=2).object, masked.object)


def test_a_scan_that_is_no_square(phase_scan: tuple[Measurement, np.ndarray], tmp_path: Path) -> None:
    """Six rows of twenty, with steps of another length along each axis: nothing exchanges them."""
    scan, obj = phase_scan
    corners = raster(6, 20, 6, 3)
    counts = scan_of(obj, corners, probe_of(32)).patterns.read(np.arange(120))
    np.save(tmp_path / "a.npy", np.fft.fftshift(counts, axes=(1, 2)))
    data = {"path": tmp_path / "a.npy", "energy_eV": 8e3, "radiation": "photon", "object_pixel_m": PIXEL}
    places = {"raster": {"shape": [6, 20], "step_m": [6 * PIXEL, 3 * PIXEL]}}
    m = load_measurement(DataOptions.parse(data, "data"), PositionOptions.parse(places, "positions"))
    np.testing.assert_allclose(m.positions - m.positions[0], corners, atol=1e-9)
    result = pm.reconstruct(replace(m, probe=scan.probe), pm.RPIE(epochs=30, batch=12), seed=2)
    assert error_of(result, obj) < 0.05


def test_a_frozen_probe_stays_as_it_was_given(phase_scan: tuple[Measurement, np.ndarray]) -> None:
    """No support cuts it; all that happens is one factor, by which its power is that of the patterns."""
    scan, _ = phase_scan
    given = np.ones((1, 32, 32)) * 120 + 3j * np.arange(32)
    result = pm.reconstruct(replace(scan, probe=given), pm.RPIE(epochs=3, batch=9, probe={"frozen": 3}), seed=2)
    factor = result.probe.reshape(-1)[0] / given.reshape(-1)[0]
    np.testing.assert_allclose(result.probe, factor * given, rtol=2e-6)
    power = scan.patterns.read(np.arange(scan.views)).sum() / scan.views
    assert np.sum(np.abs(result.probe) ** 2) == pytest.approx(power, rel=1e-4)


def test_intensities_and_variable_probes_act_together(phase_scan: tuple[Measurement, np.ndarray]) -> None:
    """Incident intensities of the file stay, and the probe's modes vary about them."""
    scan, _ = phase_scan
    light = np.random.default_rng(3).uniform(0.5, 1.5, scan.views)
    counts = scan.patterns.read(np.arange(scan.views)) * light[:, None, None]
    lit = replace(scan, patterns=ArraySource(counts.astype(np.float32)), intensity=light)
    recon = pm.Reconstruction(lit, probe={"opr_modes": 2}, seed=2)
    for _ in recon.run(pm.LSQML(epochs=10, batch=18)):
        pass
    result = recon.result()
    assert result.weights is not None and result.opr is not None
    found = result.weights[:, 0] ** 2
    np.testing.assert_allclose(found / found.mean(), light / light.mean(), rtol=1e-5)
    assert result.weights.shape == (scan.views, 3) and np.abs(result.weights[:, 1:]).max() > 1e-3


def test_an_affine_matrix_is_applied_once_by_a_warm_start(
    phase_scan: tuple[Measurement, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run takes the refined positions as they are, says so, and refuses those of another number of views."""
    scan, _ = phase_scan
    np.savez(
        tmp_path / "scan.npz",
        patterns=np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(1, 2)),
        positions=scan.positions @ np.linalg.inv([[1.03, 0.02], [0.0, 0.98]]).T * PIXEL,
    )
    data = {"path": tmp_path / "scan.npz", "keys": {"patterns": "patterns", "positions": "positions"}}
    data |= {"energy_eV": 8e3, "radiation": "photon", "object_pixel_m": PIXEL}
    places = {"affine": [[1.03, 0.02], [0.0, 0.98]]}
    told = load_measurement(DataOptions.parse(data, "data"), PositionOptions.parse(places, "positions"))
    np.testing.assert_allclose(told.positions - told.positions[0], scan.positions - scan.positions[0], atol=1e-9)
    engine = pm.RPIE(epochs=6, batch=9, positions={"start": 2})
    pm.reconstruct(told, engine, seed=2, probe={"start": {"kind": "auto"}}).save(tmp_path / "first.h5")
    first, warm = pm.Result.load(tmp_path / "first.h5"), {"initial": str(tmp_path / "first.h5")}
    moved = first.positions_px - first.positions_px[0] - (told.positions - told.positions[0])
    assert np.abs(moved).max() > 0.02
    capsys.readouterr()
    still = pm.RPIE(epochs=1, batch=9)
    second = pm.reconstruct(told, still, seed=2, object={**warm, "result_positions": True})
    assert "affine, rotation_deg, flips and lag are not applied to them again" in capsys.readouterr().err
    np.testing.assert_allclose(
        second.positions_px - second.positions_px[0], first.positions_px - first.positions_px[0], atol=1e-6
    )
    fewer = replace(told, patterns=ArraySource(told.patterns.read(np.arange(53))), positions=told.positions[:53])
    with pytest.raises(BadInput, match=r"54 views, this scan 53; name the same views \(data\.views\)"):
        pm.reconstruct(fewer, still, object={**warm, "result_positions": True})
