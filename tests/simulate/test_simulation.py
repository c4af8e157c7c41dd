"""Simulated measurements: the truth explains the counts, options do what they say, seeds decide."""

import functools

import numpy as np
import pytest
import torch

from ptymesh.errors import BadInput
from ptymesh.physics.model import Model, SliceStack
from ptymesh.simulate import Simulation, checked, patterns, simulate, truth

SMALL = {"views": 30, "window": 32}
KINDS = ["xray", "near", "electron"]


def expected(made, **positions):
    """Intensities of the truth, computed in one go."""
    estimate = made.estimate(**positions)
    model = Model.for_geometry(
        made.geometry, slices=SliceStack(len(made.object), made.slice_spacing_m), dtype=torch.complex128
    )
    views = torch.arange(len(made.positions))
    return model.intensity(
        estimate.object,
        estimate.probe,
        estimate.anchors,
        estimate.fractions(views),
        estimate.weights,
        estimate.background,
    ).numpy()


def counts(simulated):
    return simulated.measurement.patterns.read(np.arange(simulated.measurement.views))


@functools.cache
def unchanged_counts():
    """Return the counts that every changed option is compared with."""
    return counts(simulate(**SMALL))


@pytest.mark.parametrize("kind", KINDS)
def test_truth_explains_noiseless_patterns(kind):
    made = simulate(kind=kind, noise=False, modes=2, position_error_px=2.0, background_counts=3.0, **SMALL)
    found = counts(made)
    assert found.dtype == np.float32
    # float32 storage
    np.testing.assert_allclose(found, expected(made.truth), rtol=1e-6, atol=1e-6 * found.max())
    assert not np.allclose(found, expected(made.truth, nominal=True), rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_poisson(kind):
    made = simulate(kind=kind, photons_per_view=2e4, background_counts=5.0, views=60, window=32)
    mean = expected(made.truth)
    deviation = (counts(made).astype(float) - mean) / np.sqrt(mean)
    # 61,440 pixels: mean and variance of unit deviates are known to 0.004 and 0.006
    assert abs(deviation.mean()) < 0.02
    assert deviation.var() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_probe_carries_the_photons_in_the_stated_modes(kind):
    made = simulate(kind=kind, photons_per_view=3e4, modes=3, mode_powers=(0.7, 0.2, 0.1), **SMALL).truth
    gram = np.einsum("ahw,bhw->ab", made.probe.conj(), made.probe)
    np.testing.assert_allclose(gram, np.diag([2.1e4, 6e3, 3e3]), atol=1e-6)


def test_positions_are_nominal_in_the_file_and_true_in_the_truth():
    made = simulate(position_error_px=1.5, views=300, window=16)
    error = made.truth.positions - made.truth.nominal
    assert np.abs(error).max() <= 1.5 and np.abs(error).max() > 1.4
    assert error.std() == pytest.approx(1.5 / np.sqrt(3), rel=0.1)
    np.testing.assert_allclose(made.measurement.positions + made.truth.origin, made.truth.nominal)
    exact = simulate(views=300, window=16).truth
    assert np.array_equal(exact.positions, exact.nominal)


@pytest.mark.parametrize("kind", KINDS)
def test_every_window_lies_within_the_object(kind):
    made = simulate(kind=kind, position_error_px=4.0, density_ratio=3.0, **SMALL).truth
    estimate = made.estimate()
    assert int(estimate.anchors.min()) >= 2
    assert (estimate.anchors.numpy().max(axis=0) + 32 + 2 <= made.object.shape[1:]).all()
    assert all(n % 32 == 0 for n in made.object.shape[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind):
    one, again, other = (simulate(kind=kind, seed=seed, **SMALL) for seed in (1, 1, 2))
    assert np.array_equal(counts(one), counts(again))
    assert not np.array_equal(counts(one), counts(other))


def test_a_view_does_not_depend_on_how_many_are_read_at_a_time():
    made = truth(Simulation(views=50, window=32, position_error_px=1.0))
    slabs = list(patterns(made))
    assert [len(slab) for slab in slabs] == [16, 16, 16, 2]
    assert np.array_equal(np.concatenate(slabs), counts(simulate(views=50, window=32, position_error_px=1.0)))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "near"},
        {"views": 31},
        {"window": 34},
        {"scan": "jitter"},
        {"overlap": 0.5},
        {"density_ratio": 2.0},
        {"photons_per_view": 1e4},
        {"noise": False},
        {"position_error_px": 1.0},
        {"modes": 2},
        {"modes": 2, "mode_powers": (0.5, 0.5)},
        {"background_counts": 10.0},
        {"defect": "beamstop"},
        {"defect": "module"},
        {"defect": "hot"},
        {"slices": 2},
        {"slices": 2, "slice_spacing_m": 40e-6},
        {"slices": 2, "tilt_rad": (1e-3, 0)},
        {"amplitude": (0.9, 1.0)},
        {"phase_rad": (0.0, 0.1)},
        {"seed": 3},
        {"kind": "near", "focus_distance_m": 0.05},
    ],
    ids=str,
)
def test_every_option_changes_the_measurement(change):
    a, b = unchanged_counts(), counts(simulate(**{**SMALL, **change}))
    assert a.shape != b.shape or not np.array_equal(a, b)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"energy_eV": 9e3}, "wavelength_m"),
        ({"pixel_m": 1e-8}, "object_pixel_m"),
        ({"detector_pixel_m": 5e-5}, "distance_m"),
    ],
)
def test_optics_change_the_geometry(change, field):
    assert getattr(truth(checked(**SMALL)).geometry, field) != getattr(
        truth(checked(**SMALL, **change)).geometry, field
    )


def test_focus_magnifies_at_the_same_effective_geometry():
    parallel = truth(checked(kind="near", **SMALL)).geometry
    cone = truth(checked(kind="near", focus_distance_m=0.01, **SMALL)).geometry
    assert cone.magnification > 1.2
    np.testing.assert_allclose(cone.object_pixel_m, parallel.object_pixel_m)
    assert cone.effective_distance_m == pytest.approx(parallel.effective_distance_m)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("defect", ["beamstop", "module", "hot"])
def test_defects_are_masked_and_hold_nothing_true(kind, defect):
    made = simulate(kind=kind, defect=defect, **SMALL)
    bad = ~made.measurement.mask
    assert 0 < bad.sum() < 0.3 * bad.size
    value = np.iinfo(made.truth.dtype).max if defect == "hot" else 0
    assert (counts(made)[:, bad] == value).all()
    clean = simulate(kind=kind, **SMALL)
    assert np.array_equal(counts(made)[:, ~bad], counts(clean)[:, ~bad])


def test_beamstop_covers_the_direct_beam():
    far, near = (simulate(kind=kind, defect="beamstop", **SMALL).measurement.mask for kind in ("xray", "near"))
    assert not far[0, 0] and not near[16, 16]


def test_counts_are_stored_in_the_smallest_type():
    assert simulate(photons_per_view=3e4, **SMALL).truth.dtype == np.uint16
    assert simulate(photons_per_view=3e6, **SMALL).truth.dtype == np.uint32


@pytest.mark.parametrize("kind", KINDS)
def test_guess_is_near_the_truth_but_not_it(kind):
    made = simulate(kind=kind, **SMALL)
    guess, true = made.measurement.probe, made.truth.probe
    similarity = abs(np.vdot(guess, true)) / np.linalg.norm(guess) / np.linalg.norm(true)
    assert 0.5 < similarity < 0.999
    assert simulate(kind=kind, probe_guess="none", **SMALL).measurement.probe is None
    assert np.array_equal(simulate(kind=kind, probe_guess="true", **SMALL).measurement.probe, true)


def test_slices_are_not_their_product():
    """Propagation between slices matters at the default spacing: a multislice engine has something to find."""
    made = truth(checked(kind="electron", views=4, window=64, noise=False))
    thick = np.concatenate(list(patterns(made)))
    model = Model.for_geometry(made.geometry, dtype=torch.complex128)
    estimate = made.estimate()
    flat = model.intensity(
        estimate.object.prod(0, keepdim=True), estimate.probe, estimate.anchors, estimate.fractions(torch.arange(4))
    ).numpy()
    assert np.abs(thick - flat).sum() / flat.sum() > 0.01


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"veiws": 3}, "veiws is unknown; did you mean views"),
        ({"kind": "neutron"}, "kind is 'neutron'"),
        ({"views": 0}, "views is 0"),
        ({"photons_per_view": float("nan")}, "photons_per_view is nan"),
        ({"amplitude": (0.5, 1.5)}, "amplitude range is"),
        ({"phase_rad": (1.0, 0.0)}, "phase range is"),
        ({"kind": "electron", "amplitude": (0.5, 1.0)}, "amplitude is"),
        ({"focus_distance_m": 0.1}, "focus_distance_m is 0.1 for kind xray"),
        ({"kind": "near", "focus_distance_m": 1e-4}, "farther away"),
        ({"kind": "near", "detector_pixel_m": 1e-6}, "detector_pixel_m is 1e-06"),
        ({"slice_spacing_m": 1e-6}, "slice_spacing_m is 1e-06"),
        ({"tilt_rad": (1e-3, 0)}, r"tilt_rad is \(0.001, 0.0\) for a single slice"),
        ({"slices": 2, "tilt_rad": (1e-3, 1)}, "tilt_rad.1 is 1"),
        ({"modes": 2, "mode_powers": (0.5,)}, "1 mode powers"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(change, words):
    with pytest.raises(BadInput, match=words) as refused:
        simulate(**{**SMALL, **change})
    assert "\n" not in str(refused.value)
