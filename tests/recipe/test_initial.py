"""Starts of a reconstruction: the frame, every kind of probe, restarts from results and arrays."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, refuse_windows_outside
from ptymesh.geometry import Geometry
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, ConvergentBeam, Measurement
from ptymesh.physics.beam import probes
from ptymesh.physics.model import Model, SliceStack
from ptymesh.recipe.initial import StartSettings, initial_estimate
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.simulate_file import truth_result
from ptymesh.simulate import simulate

PIXEL, WAVELENGTH = (20e-9, 20e-9), 1.5498024804150033e-10


@pytest.fixture(scope="module")
def made():
    return simulate(views=40, window=48, photons_per_view=1e5, background_counts=2.0, position_error_px=1.0)


def mean_of(measurement):
    mean = measurement.patterns.read(np.arange(measurement.views)).mean(axis=0, dtype=np.float64)
    return np.where(measurement.mask, mean, 0)


def start(measurement, object=None, probe=None, **others):
    settings = {"precision": "double", "device": "cpu", "margin_px": 4, "seed": 0, **others}
    return initial_estimate(
        measurement,
        mean_of(measurement),
        StartSettings(**settings),
        object=ObjectOptions.model_validate(object or {}),
        probe=ProbeOptions.model_validate(probe or {}),
    )


def power(probe):
    return float((probe.abs() ** 2).sum())


# --- frame ---


@pytest.mark.parametrize("margin", [0, 3, 17])
def test_all_windows_fit_with_their_margin_in_whole_blocks(made, margin):
    estimate = start(made.measurement, margin_px=margin)
    height, width = estimate.object.shape[1:]
    assert height % BLOCK == 0 and width % BLOCK == 0
    least = max(margin, 2)
    assert float(estimate.positions.min()) >= least
    low, high = estimate.anchors.amin(0), estimate.anchors.amax(0) + 48
    room = torch.stack((low, torch.tensor([height, width]) - high))
    assert int(room.min()) >= least
    # centred: the slack of the last block is on both sides
    assert ((room[0] - room[1]).abs() <= 2).all()
    refuse_windows_outside(estimate)
    # no smaller number of blocks would hold them
    assert (room.sum(0) < BLOCK + 2 * least + 2).all()


def test_positions_are_the_scans_plus_the_origin(made):
    estimate = start(made.measurement)
    expected = made.measurement.positions + np.array(estimate.origin)
    np.testing.assert_array_equal(estimate.positions.numpy(), expected)
    assert torch.equal(estimate.nominal, estimate.positions)
    assert estimate.nominal.data_ptr() != estimate.positions.data_ptr()
    assert float(estimate.fractions(torch.arange(40)).abs().max()) <= 0.5
    assert all(value == round(value) for value in estimate.origin)


@pytest.mark.parametrize(("precision", "dtype"), [("single", torch.complex64), ("double", torch.complex128)])
def test_precision_is_that_of_every_tensor_but_positions(made, precision, dtype):
    estimate = start(made.measurement, precision=precision)
    real = torch.zeros((), dtype=dtype).real.dtype
    assert estimate.object.dtype == estimate.probe.dtype == dtype
    assert estimate.weights.dtype == estimate.background.dtype == real
    assert estimate.positions.dtype == estimate.nominal.dtype == torch.float64
    assert estimate.anchors.dtype == torch.int64


def test_weights_and_background_come_from_the_measurement(made):
    plain = start(made.measurement)
    assert (plain.weights == 1).all() and (plain.background == 2).all()
    varied = replace(made.measurement, intensity=np.linspace(0.5, 1.5, 40), background=None)
    estimate = start(varied)
    np.testing.assert_allclose(estimate.weights[:, 0] ** 2, np.linspace(0.5, 1.5, 40))
    assert (estimate.background == 0).all()


def test_slices_of_ones(made):
    estimate = start(made.measurement, {"slices": 3, "slice_spacing_m": 1e-6})
    assert estimate.object.shape[0] == 3 and (estimate.object == 1).all()
    assert estimate.slice_spacing_m == 1e-6


# --- probes ---


def test_power_is_that_of_the_mean_pattern_less_background(made):
    mask = made.measurement.mask.copy()
    mask[5:9] = False
    measurement = replace(made.measurement, mask=mask)
    for probe in ({}, {"start": "data"}, {"modes": 3}):
        expected = (mean_of(measurement) - 2.0)[mask].sum()
        assert power(start(measurement, probe=probe).probe) == pytest.approx(expected)


def test_the_files_probe_is_the_default(made):
    estimate = start(made.measurement)
    ratio = estimate.probe.numpy() / made.measurement.probe
    np.testing.assert_allclose(ratio, ratio[0, 0, 0])
    bare = replace(made.measurement, probe=None)
    assert torch.equal(start(bare).probe, start(bare, probe={"start": "data"}).probe)
    with pytest.raises(BadInput, match="holds no probe"):
        start(bare, probe={"start": "file"})


@pytest.mark.parametrize("defocus", [0.0, 5e-6])
def test_probe_from_data_has_the_mean_pattern(made, defocus):
    measurement = replace(made.measurement, background=None)
    probe = start(measurement, probe={"start": {"kind": "data", "defocus_m": defocus}}).probe[0]
    pattern = torch.fft.fft2(torch.fft.ifftshift(probe), norm="ortho").abs() ** 2
    np.testing.assert_allclose(pattern.numpy(), mean_of(measurement), atol=1e-8 + (0.02 * 1e5 / 48 if defocus else 0))
    focus = start(measurement, probe={"start": "data"}).probe[0]
    if defocus:
        np.testing.assert_allclose(probe, probes.defocused(focus, PIXEL, WAVELENGTH, -defocus), atol=1e-8)


def test_masked_pixels_of_the_mean_pattern_are_filled_from_their_neighbours():
    clean = simulate(views=40, window=48).measurement
    holed = simulate(views=40, window=48, defect="hot").measurement
    whole, mended = (start(m, probe={"start": "data"}).probe for m in (clean, holed))
    assert float(torch.linalg.vector_norm(mended - whole) / torch.linalg.vector_norm(whole)) < 0.1


@pytest.mark.parametrize("focus", [None, 0.05])
def test_near_field_probe_from_data_makes_the_mean_image(focus):
    near = simulate(kind="near", views=30, window=64, focus_distance_m=focus, amplitude=(1, 1), phase_rad=(0, 0))
    probe = start(near.measurement, probe={"start": "data"}).probe
    model = Model.for_geometry(near.measurement.geometry, dtype=torch.complex128)
    fractions = torch.zeros(1, 2, dtype=torch.float64)
    anchors = torch.zeros(1, 2, dtype=torch.int64)
    image = model.intensity(torch.ones(1, 64, 64, dtype=torch.complex128), probe, anchors, fractions)[0].numpy()
    # the angular spectrum's band limit removes a little
    assert np.abs(image - mean_of(near.measurement)).sum() < 0.05 * image.sum()


STARTS = [
    (
        {"kind": "electron", "semiangle_rad": 1.2e-3, "defocus_m": 20e-6, "aberrations_m": {"C12": [3e-6, 0.2]}},
        lambda s: probes.aberrated(s, PIXEL, WAVELENGTH, 1.2e-3, {"C10": -20e-6, "C12": [3e-6, 0.2]}),
    ),
    (
        {"kind": "electron", "semiangle_rad": 1.2e-3, "aberrations_m": {"C10": 20e-6}},
        lambda s: probes.aberrated(s, PIXEL, WAVELENGTH, 1.2e-3, {"C10": 20e-6}),
    ),
    (
        {"kind": "zone_plate", "outer_zone_m": 70e-9, "diameter_m": 1e-4, "central_stop_m": 4e-5, "defocus_m": -9e-5},
        lambda s: probes.zone_plate(s, PIXEL, WAVELENGTH, 70e-9, 1e-4, 4e-5, -9e-5),
    ),
    (
        {"kind": "kb", "aperture_m": [2e-4, 1e-4], "focal_length_m": 0.1, "defocus_m": [1e-5, 2e-5]},
        lambda s: probes.kb_mirror(s, PIXEL, WAVELENGTH, (2e-4, 1e-4), (0.1, 0.1), (1e-5, 2e-5)),
    ),
    (
        {"kind": "kb", "aperture_m": 2e-4, "focal_length_m": 0.1, "defocus_m": 1e-5},
        lambda s: probes.kb_mirror(s, PIXEL, WAVELENGTH, (2e-4, 2e-4), (0.1, 0.1), 1e-5),
    ),
    (
        {"kind": "pinhole", "diameter_m": 3e-7, "distance_m": 1e-4},
        lambda s: probes.pinhole(s, PIXEL, WAVELENGTH, 3e-7, 1e-4),
    ),
]


@pytest.mark.parametrize(("options", "expected"), STARTS, ids=lambda v: v["kind"] if isinstance(v, dict) else "")
def test_optics_make_their_probe(made, options, expected):
    found = start(made.measurement, probe={"start": options}).probe[0]
    wanted = expected((48, 48)) * np.sqrt(power(found))
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("options", [options for options, _ in STARTS], ids=lambda v: v["kind"])
def test_optics_need_metres(options):
    measurement = Measurement(
        ArraySource(np.ones((3, 48, 48), np.uint16)), np.zeros((3, 2)), Geometry((48, 48)), np.ones((48, 48), bool)
    )
    with pytest.raises(BadInput, match="needs the wavelength"):
        start(measurement, probe={"start": options})
    assert start(measurement, probe={"start": "data"}).probe.shape == (1, 48, 48)


def test_modes_are_made_with_their_powers(made):
    estimate = start(made.measurement, probe={"modes": 3, "mode_powers": [0.8, 0.15, 0.05]})
    gram = torch.einsum("ahw,bhw->ab", estimate.probe.conj(), estimate.probe)
    expected = power(estimate.probe) * torch.diag(torch.tensor([0.8, 0.15, 0.05], dtype=torch.float64))
    torch.testing.assert_close(gram, expected + 0j, atol=1e-6, rtol=0)
    other = start(made.measurement, probe={"modes": 3, "mode_powers": [0.8, 0.15, 0.05]}, seed=1)
    assert not torch.allclose(other.probe[1], estimate.probe[1])
    assert torch.allclose(other.probe[0], estimate.probe[0])


def test_modes_of_the_start_are_kept_unless_a_number_is_given(made):
    three = probes.extra_modes(torch.from_numpy(made.measurement.probe[0]), 3).numpy()
    measurement = replace(made.measurement, probe=three)
    assert start(measurement).probe.shape[0] == 3
    assert start(measurement, probe={"modes": 1}).probe.shape[0] == 1


@pytest.mark.parametrize("name", ["p.npy", "p.npz:probe", "p.h5:/some/probe"])
def test_probe_from_an_array(made, tmp_path, name):
    array = made.truth.probe[0] * np.exp(1j)
    file = tmp_path / name.partition(":")[0]
    if file.suffix == ".npy":
        np.save(file, array)
    elif file.suffix == ".npz":
        np.savez(file, probe=array)
    else:
        with h5py.File(file, "w") as out:
            out["some/probe"] = array
    found = start(made.measurement, probe={"start": {"kind": "array", "path": str(tmp_path / name)}}).probe
    ratio = found.numpy()[0] / array
    np.testing.assert_allclose(ratio, ratio[0, 0])


# --- restarts ---


def earlier(made, tmp_path, **changes):
    path = tmp_path / "earlier.h5"
    replace(truth_result(made.truth), **changes).save(path)
    return str(path)


def test_restart_continues_exactly(made, tmp_path):
    """Object, probe and positions of the truth, in a frame of another size: the same intensities."""
    path = earlier(made, tmp_path)
    estimate = start(
        made.measurement,
        {"initial": path, "result_positions": True},
        {"start": {"kind": "result", "path": path}},
        margin_px=40,
    )
    assert estimate.object.shape != made.truth.object.shape
    model, views = Model(), torch.arange(40)
    truth = made.truth.estimate()
    found, wanted = (model.intensity(e.object, e.probe, e.anchors, e.fractions(views)) for e in (estimate, truth))
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=1e-8)


def test_restart_with_the_scans_positions_keeps_the_object_in_place(made, tmp_path):
    path = earlier(made, tmp_path)
    estimate = start(made.measurement, {"initial": path})
    np.testing.assert_allclose(
        estimate.positions.numpy() - estimate.positions.numpy()[0], made.truth.nominal - made.truth.nominal[0]
    )
    first = estimate.object[0, int(estimate.anchors[0, 0]) :, int(estimate.anchors[0, 1]) :][:48, :48].numpy()
    anchor = np.floor(made.truth.nominal[0] + 0.5).astype(int)
    np.testing.assert_array_equal(first, made.truth.object[0, anchor[0] :, anchor[1] :][:48, :48])


def test_restart_moves_an_object_whose_scan_sits_at_another_fraction(made, tmp_path):
    """A result whose frame is shifted by a fraction of a pixel is copied, and the fraction goes to the positions."""
    result = truth_result(made.truth)
    path = earlier(made, tmp_path, positions_px=result.positions_px + 0.3, nominal_px=result.nominal_px + 0.3)
    estimate = start(made.measurement, {"initial": path})
    found = estimate.positions.numpy() - made.truth.nominal
    np.testing.assert_allclose((found - found.round()), 0.3)
    corner = (estimate.positions.numpy() - made.truth.nominal - 0.3).round().astype(int)[0]
    inner = estimate.object[0].numpy()
    overlap = inner[max(0, corner[0]) :, max(0, corner[1]) :][:60, :60]
    shift = np.maximum(0, -corner)
    np.testing.assert_array_equal(overlap, made.truth.object[0, shift[0] :, shift[1] :][:60, :60])


def test_restart_resamples_a_coarser_result(tmp_path):
    """A smooth object on pixels 1.5 times as large, as a cropped detector gives, comes back on the fine ones."""
    fine = simulate(views=40, window=48)
    ratio, there, here = 1.5, 32 // 2, 48 // 2

    def smooth(y, x):
        return (1 - 0.2 * np.cos(0.11 * x)) * np.exp(1j * (np.sin(0.13 * y) + np.cos(0.08 * x + 0.05 * y)))

    positions = fine.measurement.positions
    # beam axis at position + window // 2 on both grids: i_coarse = (i_fine - here) / 1.5 + there, from the same zero
    origin = 20.0
    coarse_y, coarse_x = np.mgrid[:96, :96].astype(float)
    coarse = smooth((coarse_y - origin - there) * ratio + here, (coarse_x - origin - there) * ratio + here)[None]
    pixel = tuple(1.5 * d for d in fine.measurement.geometry.object_pixel_m)
    path = tmp_path / "coarse.h5"
    gaussian = np.exp(-((np.mgrid[:32, :32] - 16.0) ** 2).sum(0) / 30) + 0j
    Result(coarse, gaussian[None], positions / ratio + origin, pixel_size_m=pixel).save(path)
    estimate = start(fine.measurement, {"initial": str(path)}, {"start": {"kind": "result", "path": str(path)}})
    oy, ox = estimate.origin
    rows, columns = np.arange(estimate.object.shape[1]) - oy, np.arange(estimate.object.shape[2]) - ox
    expected = smooth(rows[:, None], columns[None, :])
    inside = (slice(int(oy) - 5, int(oy) + 40), slice(int(ox) - 5, int(ox) + 40))
    # cubic splines on a period of 30 coarse pixels
    np.testing.assert_allclose(estimate.object[0].numpy()[inside], expected[inside], atol=2e-3)
    probe = estimate.probe[0].numpy()
    assert np.unravel_index(np.abs(probe).argmax(), probe.shape) == (24, 24)
    expected_probe = np.exp(-((np.mgrid[:48, :48] - 24.0) ** 2).sum(0) / (30 * ratio**2))
    np.testing.assert_allclose(np.abs(probe) / np.abs(probe).max(), expected_probe, atol=5e-3)
    assert power(estimate.probe) == pytest.approx((np.abs(gaussian) ** 2).sum())


def test_restart_of_part_of_the_scan_goes_by_metres(made, tmp_path):
    path = earlier(made, tmp_path, nominal_px=None)
    some = replace(
        made.measurement,
        patterns=ArraySource(made.measurement.patterns.read(np.arange(0, 40, 2))),
        positions=made.measurement.positions[::2],
    )
    estimate = start(some, {"initial": path})
    anchor = estimate.anchors[3].numpy()
    there = np.floor(made.truth.nominal[6] + 0.5).astype(int)
    found = estimate.object[0].numpy()[anchor[0] : anchor[0] + 48, anchor[1] : anchor[1] + 48]
    np.testing.assert_array_equal(found, made.truth.object[0, there[0] : there[0] + 48, there[1] : there[1] + 48])


def test_one_slice_is_split_over_several(made, tmp_path):
    path = earlier(made, tmp_path)
    whole = start(made.measurement, {"initial": path})
    split = start(made.measurement, {"initial": path, "slices": 3, "slice_spacing_m": 1e-6})
    torch.testing.assert_close(split.object.prod(0), whole.object[0])


@pytest.mark.parametrize("kind", ["transmission", "potential"])
def test_slices_of_another_number_share_the_same_thickness(made, tmp_path, kind):
    phases = 0.1 + 0.1 * np.arange(4)[:, None, None] * np.ones((1, *made.truth.object.shape[1:]))
    path = earlier(made, tmp_path, object=np.exp((1j - 0.5) * phases), slice_spacing_m=1e-6)

    def depths(slices, spacing_m, **options):
        """Phases of the slices, and half of that as absorption, at a pixel in the middle."""
        apart = {"slice_spacing_m": spacing_m} if slices > 1 else {}
        obj = start(made.measurement, {"initial": path, "slices": slices, "kind": kind, **apart, **options}).object
        found = obj[:, obj.shape[1] // 2, obj.shape[2] // 2].numpy()
        if kind == "transmission":
            np.testing.assert_allclose(np.abs(found), np.exp(-0.5 * np.angle(found)))
        return np.angle(found)

    np.testing.assert_allclose(depths(4, 3e-6), [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(depths(2, 2e-6), [0.3, 0.7])
    np.testing.assert_allclose(depths(1, 0), [1.0])
    np.testing.assert_allclose(depths(8, 5e-7), np.repeat([0.05, 0.1, 0.15, 0.2], 2))
    np.testing.assert_allclose(depths(3, 1e-6), [0.1 + 0.2 / 3, 2 * 0.2 / 3 + 2 * 0.3 / 3, 0.3 / 3 + 0.4])
    # their own thickness: vacuum before and behind, cropped, on a grid in between
    np.testing.assert_allclose(depths(7, 1e-6, initial_depth_m=2e-6), [0, 0, 0.1, 0.2, 0.3, 0.4, 0], atol=1e-12)
    np.testing.assert_allclose(depths(2, 1e-6, initial_depth_m=-1e-6), [0.2, 0.3])
    np.testing.assert_allclose(depths(3, 2e-6, initial_depth_m=1e-6), [0.1, 0.5, 0.4])
    np.testing.assert_allclose(depths(2, 1e-6, initial_depth_m=-0.5e-6), [0.15, 0.25])


def test_vacuum_in_front_changes_no_pattern(made, tmp_path):
    """The probe of the same result is taken back to the first of the new slices."""
    first = made.truth.object
    path = earlier(made, tmp_path, object=np.concatenate((first, first[:, ::-1])), slice_spacing_m=1e-6)
    found = []
    for slices, depth in ((2, 0.0), (4, 1e-6), (5, 3e-6)):
        options = {"initial": path, "slices": slices, "slice_spacing_m": 1e-6, "initial_depth_m": depth}
        e = start(made.measurement, options, {"start": {"kind": "result", "path": path}})
        stack = SliceStack(slices, 1e-6)
        model = Model.for_geometry(made.measurement.geometry, slices=stack, dtype=torch.complex128)
        found.append(model.intensity(e.object, e.probe, e.anchors[:9], e.fractions(torch.arange(9))))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6 * float(found[0].max()))
    assert bool((e.object[:3] == 1).all()) and bool((e.object[3] != 1).any())


def test_tilt_is_the_recipes_or_the_earlier_results(made, tmp_path):
    path, slices = earlier(made, tmp_path, tilt_rad=(1e-3, -2e-3)), {"slices": 2, "slice_spacing_m": 1e-6}
    assert start(made.measurement, slices).tilt_rad == (0.0, 0.0)
    assert start(made.measurement, {**slices, "tilt_rad": (3e-3, 0)}).tilt_rad == (3e-3, 0.0)
    assert start(made.measurement, {**slices, "initial": path}).tilt_rad == (1e-3, -2e-3)
    assert start(made.measurement, {**slices, "initial": path, "tilt_rad": (0, 0)}).tilt_rad == (0.0, 0.0)
    assert start(made.measurement, {"initial": path}).tilt_rad == (0.0, 0.0)


def test_object_from_an_array_is_centred_on_the_scan(made, tmp_path):
    np.save(tmp_path / "o.npy", np.full((20, 10), 0.5j))
    estimate = start(made.measurement, {"initial": str(tmp_path / "o.npy")})
    inside = estimate.object[0].numpy() == 0.5j
    assert inside.sum() == 200 and (estimate.object[0].numpy()[~inside] == 1).all()
    middle = np.argwhere(inside).mean(axis=0)
    centre = (estimate.positions.numpy().min(axis=0) + estimate.positions.numpy().max(axis=0)) / 2 + 23.5
    np.testing.assert_allclose(middle, centre, atol=0.51)


# --- refusals ---


def test_unsound_restarts_are_refused_in_a_sentence(made, tmp_path):
    path = earlier(made, tmp_path)
    scan = made.measurement
    far = replace(scan, positions=scan.positions * 3)
    np.save(tmp_path / "four.npy", np.ones((2, 2, 2, 2)))
    np.save(tmp_path / "text.npy", np.full((48, 48), "a"))
    np.save(tmp_path / "small.npy", np.ones((8, 8)))
    np.save(tmp_path / "nan.npy", np.full((48, 48), np.nan))
    two = str(tmp_path / "two.h5")
    replace(truth_result(made.truth), object=np.ones((2, 64, 64), complex)).save(two)
    deep = str(tmp_path / "deep.h5")
    replace(truth_result(made.truth), object=np.ones((2, 64, 64), complex), slice_spacing_m=1e-6).save(deep)
    array, three = {"kind": "array"}, {"slices": 3, "slice_spacing_m": 1e-6}
    for measurement, obj, probe, words in [
        (far, {"initial": path}, {}, "start from the same scan"),
        (
            scan,
            {"initial": two, **three, "initial_depth_m": 0},
            {},
            "tells no distance between slices; leave it",
        ),
        (scan, {"initial": deep, **three, "initial_depth_m": 1e-5}, {}, "nothing of the 2 slices of 1e-06 m in"),
        (scan, {"initial": str(tmp_path / "none.h5")}, {}, "There is no file"),
        (scan, {"initial": str(tmp_path / "none.npy")}, {}, "There is no file"),
        (scan, {"initial": str(tmp_path / "four.npy")}, {}, "two or three axes"),
        (scan, {"initial": str(tmp_path / "nan.npy")}, {}, "values of nan, which cannot be"),
        (scan, {}, {"start": array | {"path": str(tmp_path / "text.npy")}}, "must be numbers"),
        (scan, {}, {"start": array | {"path": str(tmp_path / "small.npy")}}, "make them equal"),
        (scan, {}, {"start": array | {"path": str(tmp_path / "nan.npy")}}, "values of nan, which cannot be"),
        (scan, {}, {"start": {"kind": "electron", "semiangle_rad": 0.5}}, "semi-angle is 0.5"),
        (scan, {}, {"modes": 2, "mode_powers": [1.0]}, "1 mode powers for 2"),
        (replace(scan, background=np.full((48, 48), 1e6)), {}, {}, "power is to be -"),
    ]:
        with pytest.raises(BadInput, match=words) as refused:
            start(measurement, obj, probe)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        (ObjectOptions, {"slices": 2}, "need slice_spacing_m"),
        (ObjectOptions, {"initial_depth_m": 0, "initial": "a.h5"}, "initial_depth_m is of a result with several"),
        (ObjectOptions, {"slice_spacing_m": 1e-6}, "no meaning for a single slice"),
        (ObjectOptions, {"tilt_rad": (0, 0)}, "tilt_rad has no meaning for a single slice"),
        (ObjectOptions, {"slices": 2, "slice_spacing_m": 1e-6, "tilt_rad": (0.3, 0)}, "tilt_rad"),
        (ObjectOptions, {"result_positions": True}, "needs an earlier result"),
        (ObjectOptions, {"slice": 2}, "slice"),
        (ProbeOptions, {"start": "lens"}, "lens"),
        (ProbeOptions, {"start": {"kind": "electron"}}, "semiangle_rad"),
        (ProbeOptions, {"modes": 0}, "modes"),
    ],
)
def test_options_are_typed(model, value, words):
    with pytest.raises(ValidationError, match=words):
        model.model_validate(value)


@pytest.mark.parametrize("options", [{}, {"start": "data"}, {"start": STARTS[0][0], "modes": 2}])
def test_options_survive_a_round_trip(options):
    probe = ProbeOptions.model_validate(options)
    assert ProbeOptions.model_validate(probe.model_dump(mode="json")) == probe


@pytest.mark.parametrize("shape", [(3, 5, 7), (8, 1 << 13, 1 << 13)])
def test_a_probe_of_another_shape_is_not_read(made, tmp_path, shape):
    """The larger one are 4 GB of holes."""
    path = tmp_path / "p.npy"
    np.lib.format.open_memmap(path, "w+", np.complex64, shape).flush()
    with pytest.raises(BadInput, match=r"^probe\.start: .*p\.npy has shape .* and the window \(48, 48\);"):
        start(made.measurement, probe={"start": {"kind": "array", "path": str(path)}})


def test_what_is_known_of_the_lens_makes_the_probe() -> None:
    scan = simulate(kind="electron", views=30, window=32, seed=4).measurement
    mean = np.ones(scan.window)
    lens = {"kind": "electron", "semiangle_rad": 0.02, "defocus_m": 1e-9}
    told = replace(scan, probe=None, beam=ConvergentBeam(0.02, 1e-9))
    starts = {
        name: np.asarray(ProbeOptions.parse({"start": start}, "probe").start.make(measurement, mean))
        for name, start, measurement in (
            ("lens", lens, told),
            ("auto", "auto", told),
            ("data", "data", told),
            ("wider", "auto", replace(told, beam=ConvergentBeam(0.4))),
            ("without", "auto", replace(told, beam=None)),
        )
    }
    assert np.array_equal(starts["auto"], starts["lens"]) and not np.array_equal(starts["auto"], starts["data"])
    assert np.array_equal(starts["wider"], starts["data"]), "a window that does not sample the aperture"
    assert np.array_equal(starts["without"], starts["data"])
