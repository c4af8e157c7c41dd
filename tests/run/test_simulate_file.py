"""Simulated files: what is read back is what was simulated, slab by slab, and the truth is a result."""

import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from ptymesh.cli.simulate import command
from ptymesh.errors import BadInput
from ptymesh.io.load import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.io.results import Result
from ptymesh.physics.scan_energies import interaction_ratio
from ptymesh.recipe.scans import load_scan
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import Simulation, checked, simulate, truth, truths

SMALL = {"views": 40, "window": 32}


def loaded(path):
    return load_measurement(DataOptions(path=str(path)))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"kind": "near"},
        {"kind": "near", "focus_distance_m": 0.02},
        {"kind": "electron"},
        {"background_counts": 4.0, "defect": "module", "modes": 2, "position_error_px": 1.0},
        {"noise": False, "probe_guess": "none"},
    ],
    ids=str,
)
def test_file_and_memory_hold_the_same_measurement(tmp_path, change):
    options = checked(**SMALL, **change)
    path, beside = write(options, tmp_path / "scan.cxi")
    here, there = simulate(options), loaded(path)
    views = np.arange(40)
    good = here.measurement.mask
    np.testing.assert_array_equal(there.patterns.read(views)[:, good], here.measurement.patterns.read(views)[:, good])
    np.testing.assert_array_equal(there.mask, good)
    apart = there.positions - here.measurement.positions
    np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-9)
    for name in ("propagation", "radiation", "shape"):
        assert getattr(there.geometry, name) == getattr(here.measurement.geometry, name)
    for name in ("wavelength_m", "distance_m", "object_pixel_m", "focus_distance_m"):
        wanted = getattr(here.measurement.geometry, name)
        assert getattr(there.geometry, name) == (wanted if wanted is None else pytest.approx(wanted))
    for name in ("probe", "background"):
        wanted, found = getattr(here.measurement, name), getattr(there, name)
        assert (found is None) == (wanted is None)
        if wanted is not None:
            # masked pixels have no background
            used = np.broadcast_to(good if name == "background" else True, wanted.shape)
            np.testing.assert_allclose(found[used], wanted[used], rtol=1e-6)
    result = Result.load(beside)
    np.testing.assert_array_equal(result.object, here.truth.object)
    np.testing.assert_array_equal(result.probe, here.truth.probe)
    np.testing.assert_array_equal(result.positions_px, here.truth.positions)
    np.testing.assert_array_equal(result.nominal_px, here.truth.nominal)
    np.testing.assert_allclose(result.pixel_size_m, here.truth.geometry.object_pixel_m)
    assert result.slice_spacing_m == here.truth.slice_spacing_m and result.tilt_rad == here.truth.options.tilt_rad


def test_memory_is_bounded_by_a_slab(tmp_path):
    whole = 400 * 64 * 64 * 4
    tracemalloc.start()
    write(Simulation(views=400, window=64, overlap=0.95), tmp_path / "scan.cxi")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * whole


def test_nothing_is_overwritten_without_force(tmp_path):
    options = checked(**SMALL)
    path, beside = write(options, tmp_path / "scan.cxi")
    before = path.read_bytes()
    for victim in (path, beside):
        other = path if victim is beside else beside
        other.unlink()
        with pytest.raises(BadInput, match="exists already"):
            write(checked(**SMALL, seed=1), path)
        assert not other.exists()
        path.write_bytes(before)
        beside.touch()
    write(checked(**SMALL, seed=1), path, force=True)
    (tmp_path / "folder.cxi").mkdir()
    with pytest.raises(BadInput, match=r"folder.cxi is a folder; give another name\.$"):
        write(options, tmp_path / "folder.cxi", force=True)
    assert loaded(path).views == 40


@pytest.mark.parametrize("name", ["scan.tif", "scan"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(BadInput, match=r"end it in \.cxi"):
        write(checked(**SMALL), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_options_that_fail_leave_nothing_behind(tmp_path):
    with pytest.raises(BadInput):
        write(checked(**SMALL, phase_rad=(1.0, 0.0)), tmp_path / "scan.cxi")
    assert not list(tmp_path.iterdir())


def run(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_command_line_reaches_every_option(tmp_path):
    out = tmp_path / "a.h5"
    optics = ["--kind", "near", "--window", "32", "--focus-distance", "0.02", "--photons", "1e5", "--modes", "2"]
    scan = ["--views", "20", "--scan", "raster", "--density-ratio", "2", "--position-error", "0.5", "--seed", "5"]
    words = [*optics, *scan, "--background", "3", "--defect", "hot"]
    done = run(out, *words)
    assert done.exit_code == 0, done.output
    assert "20 views of 32 x 32 pixels" in done.output and "a.truth.h5" in done.output
    options = checked(
        kind="near",
        views=20,
        window=32,
        scan="raster",
        density_ratio=2,
        photons_per_view=1e5,
        position_error_px=0.5,
        modes=2,
        background_counts=3,
        defect="hot",
        focus_distance_m=0.02,
        seed=5,
    )
    wanted, found = simulate(options).measurement, loaded(out)
    good = wanted.mask
    np.testing.assert_array_equal(
        found.patterns.read(np.arange(20))[:, good], wanted.patterns.read(np.arange(20))[:, good]
    )


def test_command_line_slices_and_no_noise(tmp_path):
    size = ("--kind", "electron", "--views", 9, "--window", 32)
    run(tmp_path / "a.cxi", *size, "--slices", 3, "--tilt", 2e-3, -1e-3, "--photons", 0)
    truth = Result.load(tmp_path / "a.truth.h5")
    assert truth.object.shape[0] == 3 and truth.tilt_rad == (2e-3, -1e-3)
    assert loaded(tmp_path / "a.cxi").patterns.dtype == np.float32


def test_command_line_does_not_overwrite(tmp_path):
    out = tmp_path / "a.cxi"
    out.write_text("precious")
    refused = run(out, "--views", 9, "--window", 32)
    assert isinstance(refused.exception, BadInput) and out.read_text() == "precious"
    assert run(out, "--views", 9, "--window", 32, "--force").exit_code == 0
    assert Path(out).stat().st_size > 1000


def test_the_scan_covers_an_object_of_a_given_size(tmp_path):
    for scan, views in (("raster", 150), ("fermat", 200), ("jitter", 190)):
        made = truth(checked(window=32, views=views, scan=scan, object_px=160, position_error_px=1.0))
        assert made.object.shape == (1, 160, 160)
        span = np.ptp(made.nominal, axis=0).max()
        assert 160 - 32 - 2 * 4 - 4 < span <= 160 - 32 - 2 * 4
        made.estimate()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"object_px": 256, "overlap": 0.5}, "overlap is 0.5 and object_px 256; give one of the two"),
        ({"object_px": 38}, "object_px is 38, which leaves no room to move a window of 32; give at least 41"),
        ({"object_px": 1024}, "40 views over an object of 1024 px lie 164 px apart, and the beam is 11.2 px wide"),
    ],
)
def test_object_sizes_that_do_not_do(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        truth(checked(**SMALL, scan="raster", **change))


def test_uncompressed_patterns_lie_one_after_the_other(tmp_path):
    out = tmp_path / "a.cxi"
    done = run(out, "--views", 60, "--window", 32, "--object-size", 96, "--photons", 3e4, "--compression", "none")
    assert done.exit_code == 0, done.output
    with h5py.File(out) as file:
        data = file["entry_1/data_1/data"]
        assert data.chunks is None and data.compression is None and data.dtype == np.uint16
    wanted = simulate(checked(views=60, window=32, object_px=96, photons_per_view=3e4)).measurement.patterns
    some = np.array([50, 3, 17])
    np.testing.assert_array_equal(loaded(out).patterns.read(some), wanted.read(some))
    assert Result.load(tmp_path / "a.truth.h5").object.shape == (1, 96, 96)


def test_overlap_and_compression_from_the_command_line(tmp_path):
    run(tmp_path / "a.cxi", "--views", 20, "--window", 32, "--overlap", 0.4)
    wanted = truth(checked(views=20, window=32, overlap=0.4))
    assert Result.load(tmp_path / "a.truth.h5").object.shape == wanted.object.shape
    refused = run(tmp_path / "b.cxi", "--compression", "zip")
    assert isinstance(refused.exception, BadInput) and "should be gzip or none" in str(refused.exception)


@pytest.mark.long
def test_a_large_object_takes_little_more_memory_than_itself():
    tracemalloc.start()
    made = truth(checked(views=2500, window=64, object_px=1024, scan="raster"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.object.nbytes < peak < 3 * made.object.nbytes


FURTHER = {"scan": "jitter", "shift_px": (1.5, -1.0), "rotation_deg": 0.5, "scale": 0.02, "defocus_m": 2e-5}


def test_further_scans_are_files_that_a_recipe_joins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    second = {"views": 30, "photons_per_view": 2e6, "background_counts": 3}
    said = yaml.safe_dump([second, {**FURTHER, "shift_px": list(FURTHER["shift_px"])}])
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["scan.cxi", "--views", "40", "--window", "32", "--further-scans", said])
    assert done.exit_code == 0 and "scan-2.cxi: 30 views" in done.output, done.output
    joint = load_scan(Recipe.parse({"scans": [{"data": {"path": f"scan{n}.cxi"}} for n in ("", "-2", "-3")]}))
    assert np.bincount(joint.scan_index).tolist() == [40, 30, 40] and joint.scan_names == ("scan", "scan-2", "scan-3")
    assert joint.intensity[45] / joint.intensity[0] == pytest.approx(2.0, rel=0.05)
    made = truths(Simulation.parse({**SMALL, "further_scans": [{"views": 30}, FURTHER]}))
    result = Result.load("scan.truth.h5")
    np.testing.assert_allclose(result.positions_px[70:], made[2].positions)
    np.testing.assert_allclose(result.nominal_px[70:], made[2].nominal)
    np.testing.assert_allclose(result.scan_probes[2], made[2].probe)
    assert result.background[1].max() == 3 and result.background[2].max() == 0
    assert result.parameters["scan_shift"]["rotation2"] == pytest.approx(np.deg2rad(0.5))


def test_a_further_scan_lies_where_it_is_put():
    """A point of it is turned from y towards -x, stretched about the middle of its scan, and shifted."""
    first, other = truths(Simulation.parse({**SMALL, "further_scans": [FURTHER]}))
    middle, angle = other.nominal.mean(axis=0), np.deg2rad(0.5)
    turn = 1.02 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    np.testing.assert_allclose(other.positions, (other.nominal - middle) @ turn.T + middle + [1.5, -1.0], atol=1e-9)
    power = [float((abs(one.probe) ** 2).sum()) for one in (first, other)]
    assert power[1] == pytest.approx(power[0]) and abs(other.probe - first.probe).max() > 0.1 * abs(first.probe).max()
    room = np.array(first.object.shape[1:]) - 32
    assert (other.positions >= 0).all() and (other.positions <= room).all()


def test_a_scan_at_another_distance_or_energy_sees_the_same_object():
    near = truths(checked(kind="near", **SMALL, further_scans=[{"distance_ratio": 1.5}]))
    assert near[1].geometry.distance_m == pytest.approx(1.5 * near[0].geometry.distance_m)
    assert near[1].geometry.object_pixel_m == near[0].geometry.object_pixel_m
    hard, soft = truths(checked(kind="electron", slices=1, **SMALL, further_scans=[{"energy_eV": 8e4}]))
    ratio = interaction_ratio(soft.geometry, hard.geometry)
    assert ratio > 1.2
    np.testing.assert_allclose(np.angle(soft.object), ratio * np.angle(hard.object), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "crystal", "further_scans": [{}]}, "without a crystal and without optics"),
        ({"optics": {"fly_scan": True}, "further_scans": [{}]}, "without a crystal and without optics"),
        ({"further_scans": [{"distance_ratio": 1.5}]}, "distance_ratio is for near fields of a parallel beam"),
        ({"further_scans": [{"defocus_m": 1.0}]}, "give a shorter distance"),
        ({"kind": "near", "further_scans": [{"energy_eV": 7000.0}]}, "of another energy are for far fields"),
        (
            {"further_scans": [{"shift": 1.0}]},
            r"further_scans.0.shift is unknown; did you mean further_scans.0.shift_px\?",
        ),
    ],
)
def test_further_scans_that_cannot_be_are_refused(tmp_path, change, said):
    with pytest.raises(BadInput, match=said):
        write(checked(**SMALL, **change), tmp_path / "scan.cxi")
    assert not list(tmp_path.iterdir())


def test_several_scans_are_not_returned_as_one():
    with pytest.raises(BadInput, match="call simulate_scans"):
        simulate(**SMALL, further_scans=[{}])
