"""Crystals: potentials, multislice and detector against analytic results, and what the options do."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import constants as codata
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.special import j0

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_interaction, electron_wavelength_m, far_field
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.propagate import fft, fresnel_kernel
from ptymesh.run.simulate_file import truth_result
from ptymesh.simulate import checked, patterns, simulate, truth
from ptymesh.simulate.crystal import Atoms, Crystal, arrange_atoms
from ptymesh.simulate.multislice import Specimen, project, transmit
from ptymesh.simulate.scattering import ELEMENTS, projected_potential

WAVELENGTH_M = electron_wavelength_m(300e3)
#: A scan that takes a moment.
SMALL = {"kind": "crystal", "views": 9, "window": 32, "scan": "raster", "slices": 2}
THIN = {"thickness_m": 1e-9, "configurations": 2, "aberrations_m": {"C10": -5e-9}}


def intensities(**crystal):
    made = truth(checked(**SMALL, noise=False, crystal={**THIN, **crystal}))
    return made, np.concatenate(list(patterns(made)))


#: Every changed option is compared with one and the same simulation.
unchanged = functools.cache(intensities)


@pytest.mark.parametrize("element", ELEMENTS)
def test_amplitudes_meet_mott_and_bethe(element):
    number, a, b = ELEMENTS[element]
    bohr = codata.physical_constants["Bohr radius"][0] * 1e10
    assert np.sum(np.array(a) / np.array(b)) == pytest.approx(number / (2 * math.pi**2 * bohr), rel=2e-3)


@pytest.mark.parametrize("displacement_m", [8e-12, 1.2e-11])
def test_an_atom_has_its_projected_potential(displacement_m):
    """On the pixels' band the potential is the Hankel transform of the atom's, wherever between pixels it lies."""
    place, pixel_m = np.array([[6.13e-10, 5.87e-10, 1e-11]]), 0.1e-10
    found = project(Atoms(np.array(["Si"]), place), (120, 120), pixel_m, (1, 1e-10), displacement_m)[0].numpy()
    assert found.sum() * (pixel_m * 1e10) ** 2 * 1e10 == pytest.approx(
        float(projected_potential("Si", np.zeros(1))[0]), rel=1e-5
    )
    for row, column in ((61, 66), (70, 59)):
        distance = math.hypot(row * 0.1 - 6.13, column * 0.1 - 5.87)

        def slope(g, r=distance):
            blur = math.exp(-2 * (math.pi * displacement_m * 1e10 * g) ** 2)
            return 2 * math.pi * g * float(projected_potential("Si", np.array([g]))[0]) * blur * j0(2 * math.pi * g * r)

        assert found[row, column] * 1e10 == pytest.approx(quad(slope, 0, 60, limit=800)[0], rel=0.02)


def test_beams_lie_at_the_reciprocal_lattice_with_the_structure_factors_sizes():
    """A plane wave through a thin crystal: Bragg's positions, forbidden beams dark, kinematic intensities."""
    side, cells = 64, 4
    pixel_m = cells * 5.431e-10 / side
    crystal = Crystal(structure="silicon", thickness_m=5.431e-10, displacement_m=0)
    corner = 0.01e-10  # so that no atom lies on the field's border
    atoms = arrange_atoms(crystal, (side * pixel_m, side * pixel_m))
    inside = ((atoms.places_m[:, :2] + corner) % (side * pixel_m)).round(14)
    places = np.unique(np.column_stack([inside, atoms.places_m[:, 2:].round(14)]), axis=0)
    assert len(places) == 8 * cells**2
    atoms = Atoms(np.full(len(places), "Si"), places)
    weak = 0.01 * electron_interaction(WAVELENGTH_M)
    phase = project(atoms, (side, side), pixel_m, (1, crystal.thickness_m)) * weak
    wave = torch.full((1, side, side), 1 / side, dtype=torch.complex128)
    found = fft(
        transmit(wave, torch.polar(torch.ones_like(phase), phase), torch.ones((side, side)), np.zeros((1, 2), int))
    )
    found = (found[0].abs() ** 2).numpy()
    for h, k in ((2, 2), (4, 0), (4, 4), (6, 2)):
        g = math.hypot(h, k) / 5.431
        expected = (weak * 8 * float(projected_potential("Si", np.array([g]))[0]) / 5.431**2 * 1e-10) ** 2
        assert found[h * cells, k * cells] == pytest.approx(expected, rel=0.01), "kinematic intensity"
    for h, k in ((1, 0), (1, 1), (2, 0), (3, 1), (4, 2)):
        assert found[h * cells, k * cells] < 1e-5 * found[2 * cells, 2 * cells], f"({h}, {k}, 0) is forbidden"
    found[::cells, ::cells] = 0
    assert found.max() < 1e-12, "nothing between the lattice's points"


def test_beams_beat_with_the_thickness():
    """Many equal slices do what the exponential of kinetic and potential energy in one matrix does."""
    side, pixel_m, slice_m, slices = 10, 0.39e-10, 0.05e-10, 2700
    rng = np.random.default_rng(0)
    x = np.arange(side)
    potential = 60 * np.cos(2 * math.pi * x / side) + rng.normal(size=(side, side))  # V
    sigma = electron_interaction(WAVELENGTH_M)
    k2 = np.fft.fftfreq(side, pixel_m)[:, None] ** 2 + np.fft.fftfreq(side, pixel_m) ** 2
    dft = np.fft.fft(np.eye(side), norm="ortho")
    dft = np.kron(dft, dft)
    energy = np.diag(sigma * potential.ravel()) - dft.conj().T @ np.diag((math.pi * WAVELENGTH_M * k2).ravel()) @ dft
    step = expm(1j * slice_m * 150 * energy)
    one = torch.from_numpy(np.exp(1j * sigma * potential * slice_m)).expand(151, side, side)
    kernel = fresnel_kernel((side, side), (pixel_m, pixel_m), WAVELENGTH_M, slice_m)
    wave = torch.full((1, side, side), 1 / side, dtype=torch.complex128)
    exact, direct = np.full(side * side, 1 / side, complex), []
    for _ in range(slices // 150):
        # half a slice before and after the others is the symmetric product, whose error is of the second order
        halves = one.clone()
        halves[0], halves[-1] = halves[0].sqrt(), halves[-1].sqrt()
        wave = transmit(wave, halves, kernel, np.zeros((1, 2), int))
        exact = step @ exact
        assert np.abs(wave.numpy().ravel() - exact).max() < 2e-4
        direct.append(abs(exact.mean() * side) ** 2)
    least = int(np.argmin(direct))
    assert 2 * direct[least] < min(direct[0], max(direct[least:])), "the direct beam goes and comes back"


def test_electrons_are_conserved():
    """All arrive but those beyond the band, few from so thin a crystal; pixels that integrate count them all."""
    for refine in (1, 2):
        point, whole = (
            intensities(structure="silicon", refine=refine, integrating=integrating)[1].sum((1, 2)) / 1e5
            for integrating in (False, True)
        )
        assert (np.abs(1 - np.stack((point, whole))) < 4e-3).all()
        np.testing.assert_allclose(point, whole, atol=3e-3)


@pytest.mark.parametrize(("extent", "refine"), [(1, 1), (2, 1), (3, 2)])
def test_a_thin_crystal_is_the_object_of_its_truth(extent, refine):
    """One layer without displacements: the model of reconstructions explains the patterns, at the same positions."""
    crystal = {
        **THIN,
        "structure": "gold",
        "thickness_m": 1e-10,
        "slice_m": 1e-10,
        "displacement_m": 0.0,
        "extent": extent,
        "refine": refine,
        "integrating": False,
        "configurations": 1,
    }
    made = truth(
        checked(**{**SMALL, "slices": 1, "position_error_px": 1.0, "window": 64}, noise=False, crystal=crystal)
    )
    found = np.concatenate(list(patterns(made)))
    model = Model.for_geometry(made.geometry, slices=SliceStack(1, 0.0, (0.0, 0.0)), dtype=torch.complex128)

    def residual(shift_px):
        estimate = replace(made, positions=made.positions + shift_px).estimate()
        fractions = estimate.fractions(torch.arange(9))
        expected = model.intensity(estimate.object, estimate.probe, estimate.anchors, fractions).numpy()
        # a wider field holds the beam's faint rings, which the window of the truth cuts off, alike in all views
        return np.linalg.norm((expected - expected.mean(0)) - (found - found.mean(0))) / np.linalg.norm(
            found - found.mean(0)
        )

    right = residual(np.zeros(2))
    assert right < (0.1 if extent == 1 else 0.3)
    for shift in ((0.5, 0.0), (-0.5, 0.0), (0.0, 0.5), (0.0, -0.5)):
        assert residual(np.array(shift)) > 1.3 * right


def test_slabs_are_the_mean_over_displacements():
    made = truth(checked(**SMALL, crystal={**THIN, "slice_m": 5e-10, "displacement_m": 1e-11}))
    crystal = made.options.crystal
    specimen = Specimen(crystal, made.geometry, made.object.shape[1:], 2, 0)
    total, rng = 0.0, np.random.default_rng(3)
    for _ in range(60):
        places = specimen.atoms.places_m.copy()
        places[:, :2] += crystal.displacement_m * rng.standard_normal((len(places), 2))
        moved = Atoms(specimen.atoms.elements, places)
        total = total + project(moved, specimen.field, specimen.pixel_m, (2, 5e-10)) / 60
    inner = tuple(slice(specimen.border, specimen.border + n) for n in specimen.sides)
    found = total.numpy()[(slice(None), *inner)] * electron_interaction(WAVELENGTH_M)
    mean = np.angle(made.object)
    assert np.abs(found - mean).std() < 0.06 * mean.std()
    assert np.abs(found.mean() - mean.mean()) < 1e-3 * mean.max()


def test_pixels_that_integrate_take_the_mean_over_their_area():
    """In a field of eight windows the spectrum is known at eight places along each side of a pixel."""
    made, found = intensities(extent=8, configurations=1)
    crystal = made.options.crystal.model_copy(update={"integrating": False})
    # a window of as many pixels as the field, and no fewer: each is one place of the spectrum
    geometry = far_field((256, 256), WAVELENGTH_M, made.geometry.distance_m, (150e-6 / 8,) * 2, "electron")
    sides = tuple(n + 224 for n in made.object.shape[1:])
    wide = Specimen(crystal.model_copy(update={"extent": 1}), geometry, sides, 2, 0)
    fine = np.concatenate([x.numpy() for x in wide.intensities(made.positions, 16)]) * 1e5
    fine = np.fft.fftshift(fine, axes=(1, 2))
    # mean over each pixel, the places on its rim with half of their weight
    weight = np.array([0.5, *[1.0] * 7, 0.5])
    expected = np.zeros((9, 31, 31))
    for i, a in enumerate(weight):
        for j, b in enumerate(weight):
            expected += a * b * fine[:, 4 + i : 4 + i + 241 : 8, 4 + j : 4 + j + 241 : 8]
    found = np.fft.fftshift(found, axes=(1, 2))[:, 1:, 1:]
    assert np.abs(found - expected).sum() / expected.sum() < 0.01


def test_the_source_has_its_width():
    specimen = truth(checked(**SMALL, crystal={**THIN, "configurations": 7, "source_m": 3e-11}))
    offsets = Specimen(specimen.options.crystal, specimen.geometry, (64, 64), 2, 0).offsets_m
    np.testing.assert_allclose(offsets.mean(axis=0), 0, atol=1e-18)
    assert np.sqrt((offsets**2).sum(axis=1).mean() / 2) == pytest.approx(3e-11)


@pytest.mark.parametrize(
    ("crystal", "distance_A"),
    [
        ({"structure": "silicon", "zone": (1, 1, 0)}, 5.431 / 4),  # dumbbells
        ({"structure": "gold", "zone": (0, 0, 1)}, 4.078 / 2),
        ({"structure": "gold", "zone": (1, 1, 1)}, 4.078 / math.sqrt(6)),
        ({"structure": "gold", "zone": (0, -1, 0), "rotation_deg": 30.0}, 4.078 / 2),
    ],
)
def test_columns_lie_as_seen_along_the_zone_axis(crystal, distance_A):
    atoms = arrange_atoms(Crystal(thickness_m=3e-9, **crystal), (2.5e-9, 2.5e-9))
    places = atoms.places_m[:, :2] * 1e10
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    assert apart[apart > 0.05].min() == pytest.approx(distance_A, abs=1e-6)


def test_halves_are_turned_and_axes_lean():
    def first(twist, half):
        atoms = arrange_atoms(Crystal(structure="gold", thickness_m=4e-9, twist_deg=twist), (4e-9, 4e-9))
        here = atoms.places_m[(atoms.places_m[:, 2] > 2e-9) == half]
        offset = here[:, :2] - 2e-9
        near = offset[np.argsort(np.hypot(*offset.T).round(13), kind="stable")]
        near = near[np.hypot(*near.T) > 1e-11][:8]
        return np.rad2deg(np.arctan2(near[:, 0], near[:, 1])) % 45

    assert np.ptp((first(7.0, False) + 1) % 45) < 1e-6
    np.testing.assert_allclose(first(7.0, True), 7.0, atol=1e-6)
    upright, leant = (
        arrange_atoms(Crystal(structure="gold", thickness_m=4e-9, tilt_rad=tilt), (4e-9, 4e-9)).places_m
        for tilt in ((0.0, 0.0), (0.02, -0.01))
    )
    middle = upright[np.abs(upright[:, :2] - 2e-9).max(axis=1) < 1e-11]
    assert len(middle) == 10
    for _, _, z in middle:
        depth = z - 1e-11
        there = np.array([2e-9 + depth * 0.02, 2e-9 - depth * 0.01])
        assert np.hypot(*(leant[:, :2] - there).T).min() < 3e-3 * depth + 1e-13


def test_the_number_of_views_at_a_time_changes_no_bit(monkeypatch):
    _, whole = intensities(source_m=2e-11, configurations=3)
    monkeypatch.setattr("ptymesh.simulate.simulation.CHUNK", 4)
    _, parts = intensities(source_m=2e-11, configurations=3)
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(
    "change",
    [
        {"structure": "silicon"},
        {"cell_m": (4e-10, 4e-10, 4e-10), "sites": (("Au", 0, 0, 0),)},
        {"zone": (1, 1, 0)},
        {"rotation_deg": 10.0},
        {"twist_deg": 10.0},
        {"tilt_rad": (0.01, 0.0)},
        {"thickness_m": 2e-9},
        {"slice_m": 5e-10},
        {"displacement_m": 0.0},
        {"configurations": 3},
        {"semiangle_rad": 15e-3},
        {"aberrations_m": {"C10": -5e-9, "C12": (1e-9, 0.3)}},
        {"step_m": 1e-10},
        {"source_m": 2e-11, "configurations": 3},
        {"integrating": False},
        {"extent": 2},
        {"refine": 2},
    ],
    ids=str,
)
def test_every_option_changes_the_patterns(change):
    assert not np.array_equal(unchanged()[1], intensities(**change)[1])


def test_the_truth_has_phases_without_wraps():
    made = truth(checked(**SMALL, crystal={**THIN, "structure": "gold", "thickness_m": 8e-9}))
    assert made.potential is not None and made.potential.max() > math.pi
    np.testing.assert_array_equal(truth_result(made).phase, made.potential)
    np.testing.assert_allclose(np.exp(1j * made.potential), made.object)


def test_dose_is_electrons_on_an_area():
    made = simulate(**SMALL, crystal={**THIN, "dose_e_per_A2": 1e5})
    counts = made.measurement.patterns.read(range(9)).sum((1, 2))
    assert counts.mean() == pytest.approx(1e5 * 0.8**2, rel=0.03)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crystal": {"structure": "cheese"}}, "structure is 'cheese'"),
        ({"crystal": {"cell_m": (4e-10,) * 3}}, "cell_m and sites"),
        ({"crystal": {"cell_m": (4e-10,) * 3, "sites": (("Xx", 0, 0, 0),)}}, "element 'Xx'"),
        (
            {"crystal": {"cell_m": (4e-10,) * 3, "cell_angles_deg": (10, 90, 170), "sites": (("Au", 0, 0, 0),)}},
            "span no volume",
        ),
        ({"crystal": {"zone": (0, 0, 0)}}, "no direction"),
        ({"crystal": {"source_m": 1e-11, "configurations": 2}}, "take 3 or more"),
        ({"crystal": {"semiangle_rad": 0.2}}, "semi-angle is 0.2 rad"),
        ({"crystal": {"dose_e_per_A2": 1e5}, "photons_per_view": 1e5}, "give one of the two"),
        ({"overlap": 0.5}, "overlap is 0.5 for kind crystal"),
        ({"modes": 2}, "not for kind crystal"),
        ({"kind": "electron", "crystal": {}}, "for kind crystal alone"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(change, words):
    with pytest.raises(BadInput, match=words) as refused:
        truth(checked(**{**SMALL, **change}))
    assert "\n" not in str(refused.value)
