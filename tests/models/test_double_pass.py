"""A mirror behind the object: waves that pass it, come back, and pass it once more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.models.exit_wave.double_pass import DoublePass
from ptymesh.physics.backend import Backend
from ptymesh.physics.model import Model, SliceStack
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import Simulated, simulate
from stopped_runs import end_of_run

WAVELENGTH, PIXELS, DEPTH = 13.5e-9, (40e-9, 30e-9), 2e-7
PIECE: dict[str, Any] = {"double_pass": {"depth_m": DEPTH}}
#: A mirror that returns little far from 20 degrees, and turns the phase.
TABLE = [[10.0, 0.2, -1.5], [20.0, 1.0, 0.0], [30.0, 0.3, 2.0]]


def mask_scan(**options: Any) -> Simulated:
    """At 20 degrees and 13.5 nm, with diffraction to 4 degrees; what comes twice is 4 pixels apart."""
    lengths = {"energy_eV": 92, "pixel_m": 100e-9, "detector_pixel_m": 1e-5, "surface_deg": (0.0, 20.0)}
    given = {"views": 64, "window": 48, "seed": 3, "photons_per_view": 1e6, "optics": PIECE} | options
    return simulate(**lengths, **given)


DEEP = {"double_pass": {"depth_m": 6e-7}}


def true_result(made: Simulated) -> pm.Result:
    pixel = made.measurement.geometry.object_pixel_m
    return pm.Result(made.truth.object, made.truth.probe, made.truth.positions, pixel_size_m=pixel)


@pytest.mark.parametrize(("axis", "degrees"), [(1, 20.0), (1, -35.0), (0, 20.0), (0, 0.0)])
def test_the_way_to_the_mirror_and_back_is_that_of_plane_waves(axis: int, degrees: float) -> None:
    """Against wave vectors in three dimensions."""
    lean = (degrees, 0.0) if axis == 0 else (0.0, degrees)
    geometry = Geometry((16, 12), wavelength_m=WAVELENGTH, object_pixel_m=PIXELS, surface_deg=lean)
    (found,) = DoublePass(depth_m=DEPTH).tables(geometry)
    ky, kx = np.meshgrid(np.fft.fftfreq(16, PIXELS[0]), np.fft.fftfreq(12, PIXELS[1]), indexing="ij")
    along, across = (ky, kx) if axis == 0 else (kx, ky)
    along = along - math.sin(math.radians(degrees)) / WAVELENGTH
    normal = np.sqrt(np.maximum(WAVELENGTH**-2 - along**2 - across**2, 0))
    phase = 2 * np.pi * 2 * DEPTH * (normal - math.cos(math.radians(degrees)) / WAVELENGTH)
    assert (normal > 0).all()
    np.testing.assert_allclose(found.numpy(), np.exp(1j * phase), atol=1e-9)
    torch.testing.assert_close(found[0, 0], torch.ones((), dtype=found.dtype))


def test_a_wave_comes_back_displaced_along_the_beam() -> None:
    geometry = Geometry((64, 64), wavelength_m=WAVELENGTH, object_pixel_m=(1e-7, 1e-7), surface_deg=(0.0, -30.0))
    y, x = np.indices((64, 64)) - 32
    spot = torch.from_numpy(np.exp(-(y**2 + x**2) / 50).astype(np.complex128))
    (transfer,) = DoublePass(depth_m=1e-6).tables(geometry)
    back = torch.fft.ifft2(torch.fft.fft2(spot) * transfer).abs().square()
    centre = [float((back * torch.from_numpy(r)).sum() / back.sum()) for r in (y, x)]
    np.testing.assert_allclose(centre, [0.0, 2e-6 * math.tan(math.radians(30)) / 1e-7], atol=0.05)


def test_the_mirror_returns_what_its_table_says() -> None:
    geometry = Geometry((8, 400), wavelength_m=WAVELENGTH, object_pixel_m=(1e-7, 2e-8), surface_deg=(0.0, 20.0))
    (found,) = DoublePass(depth_m=0.0, reflectivity=TABLE).tables(geometry)
    sines = np.abs(np.fft.fftfreq(400, 2e-8) * WAVELENGTH - math.sin(math.radians(20)))
    angles = np.degrees(np.arcsin(sines))
    np.testing.assert_allclose(found[0].abs(), np.interp(angles, [10, 20, 30], [0.2, 1.0, 0.3]), atol=1e-9)
    assert float(found[0, 0].angle()) == pytest.approx(0.0, abs=1e-9)
    near = np.argmin(np.abs(angles - 15))
    assert float(found[0, near].angle()) == pytest.approx(np.interp(angles[near], [10, 20], [-1.5, 0.0]), abs=1e-9)


def model_and_parts() -> tuple[Model, torch.Tensor, torch.Tensor]:
    geometry = Geometry((16, 12), wavelength_m=WAVELENGTH, object_pixel_m=PIXELS, surface_deg=(0.0, 20.0))
    piece = DoublePass(depth_m=DEPTH, reflectivity=TABLE)
    model = Model.for_geometry(geometry, optics=[piece], dtype=torch.complex128)
    rng = torch.Generator().manual_seed(0)
    return (
        model,
        torch.randn(3, 1, 16, 12, dtype=torch.complex128, generator=rng),
        torch.randn(3, 2, 16, 12, dtype=torch.complex128, generator=rng),
    )


def test_changes_and_their_adjoint() -> None:
    """The first-order change is that of finite differences, and the adjoint its adjoint, for object and probe."""
    model, windows, probes = model_and_parts()
    forward = model.forward(windows, probes)
    kernel = model.mirror.tables[0] if model.mirror else None
    assert kernel is not None
    wanted = torch.fft.ifft2(torch.fft.fft2(probes * windows) * kernel) * windows
    torch.testing.assert_close(forward.exit, wanted)
    d_windows, d_probes, chi = torch.randn_like(windows), torch.randn_like(probes), torch.randn_like(probes)
    step = 1e-6
    for object_moves, probe_moves in ((d_windows, None), (None, d_probes), (d_windows, d_probes)):
        ends = [
            model.forward(
                windows if object_moves is None else windows + sign * step * object_moves,
                probes if probe_moves is None else probes + sign * step * probe_moves,
            ).exit
            for sign in (1, -1)
        ]
        change = model.exit_change(forward, probe_moves, object_moves)
        torch.testing.assert_close(change, (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-7)
        to_windows, to_probes = model.forward_adjoint(forward, chi)
        pairs = [(object_moves, to_windows), (probe_moves, to_probes)]
        inner = sum(torch.vdot(moved.flatten(), back.flatten()) for moved, back in pairs if moved is not None)
        torch.testing.assert_close(torch.vdot(change.flatten(), chi.flatten()), inner)
    # a change of the object is no larger than its weight says
    power = float(model.exit_change(forward, None, d_windows).abs().square().sum())
    weight = (model.illumination(forward) * d_windows.abs().square()).sum()
    assert power <= float(weight) * float(windows.abs().max()) ** 2


def test_kernels_leave_it_to_the_reference() -> None:
    recon = pm.Reconstruction(mask_scan().measurement, optics=PIECE, precision="double", device="cpu")
    problem, estimate = recon.problem, recon.state.estimate
    problem.begin_epoch(estimate)
    batch = Batch(np.arange(20), refine=True)
    assert isinstance(problem.backend, CpuBackend)
    (chunk, *_) = problem.loader.chunks(estimate, batch.views)
    assert not any(problem.backend.supports(problem.model, chunk, name) for name, _ in problem.backend.table)
    found = problem.gradients(estimate, batch).object.values.clone()
    problem.backend = Backend()
    torch.testing.assert_close(found, problem.gradients(estimate, batch).object.values)


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_an_engine_finds_the_object(engine: str) -> None:
    """The true one, which a single pass does not explain."""
    made, ends = mask_scan(optics=DEEP), {}
    for name, optics in (("twice", DEEP), ("once", {})):
        found = pm.reconstruct(made.measurement, ENGINES[engine](epochs=20, batch=16), optics=optics, seed=1)
        ends[name] = found.attrs["final_residual"], compare_results(found, true_result(made)).nrmse
    assert ends["twice"][0] < ends["once"][0] and ends["twice"][1] < 0.5 * ends["once"][1]


def test_the_reflectivity_matters() -> None:
    optics = {"double_pass": {"depth_m": 6e-7, "reflectivity": [[18.0, 0.2, -2.0], [20.0, 1.0, 0.0], [22.0, 0.2, 2.0]]}}
    made = mask_scan(optics=optics)
    ends = []
    for given in (optics, DEEP):
        stages = [pm.RPIE(epochs=10, batch=16), pm.Adam(epochs=20, batch=16)]
        found = pm.reconstruct(made.measurement, stages, optics=given, seed=1)
        ends.append((found.attrs["final_residual"], compare_results(found, true_result(made)).nrmse))
    assert ends[0][0] < 0.7 * ends[1][0] and ends[0][1] < 0.7 * ends[1][1]


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one rank ends with."""
    scan, folder = mask_scan(optics=DEEP).measurement, how.get("folder")
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    recon = pm.Reconstruction(
        scan, optics=DEEP, device=world, layout=layout, seed=1, saved=saved, probe_modes=2, precision="single"
    )
    recon.stages = [ENGINES[engine](epochs=3, batch=17, positions=True, probe={"intensity": True})]
    return end_of_run(recon, how, "positions")


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str) -> None:
    one = outcome(Solo(), "replicated", engine, {})
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, {}):
            for name, array in one.items():
                assert np.array_equal(array, other[name]), name


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    one = outcome(Solo(), "replicated", "adam", {})
    ranks(2, outcome, "tiled", "adam", {"folder": tmp_path, "stop": 5})
    for name, array in outcome(Solo(), "replicated", "adam", {"folder": tmp_path}).items():
        assert np.array_equal(array, one[name]), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "depth_m"),
        ({"depth_m": -1e-9}, "depth_m"),
        ({"depth_m": 1e-8, "reflectivity": [[5, 1, 0], [5, 1, 0]]}, "angles that do not rise"),
        ({"depth_m": 1e-8, "reflectivity": [[5, -1, 0]]}, "amplitudes below 0"),
        ({"depth_m": 1e-8, "reflectivity": []}, "angles that do not rise"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Recipe.parse({"data": {"path": "scan.cxi"}, "optics": {"double_pass": options}})


def test_what_passes_no_object_twice_is_refused() -> None:
    scan = mask_scan(views=20).measurement
    with pytest.raises(BadInput, match="mirror behind an object of one slice"):
        Model.for_geometry(scan.geometry, slices=SliceStack(2, 1e-8), optics=[DoublePass(depth_m=DEPTH)])
    with pytest.raises(BadInput, match="mirror behind an object of one slice"):
        pm.Reconstruction(scan, optics=PIECE, object={"modes": 2}, device="cpu")
    with pytest.raises(BadInput, match=r"optics\.double_pass"):
        Model.for_geometry(Geometry((16, 16)), optics=[DoublePass(depth_m=DEPTH)])
    recon = pm.Reconstruction(scan, optics=PIECE, device="cpu")
    for name, said in (
        ("dm", "dm has no meaning where waves pass the object twice"),
        ("cg", "cg does not know optics"),
    ):
        with pytest.raises(BadInput, match=said):
            ENGINES[name]().check(recon.problem)
    with pytest.raises(BadInput, match=r"unknowns.slice_spacing has no meaning for a single slice"):
        pm.Adam(unknowns={"slice_spacing": True}).check(recon.problem)
