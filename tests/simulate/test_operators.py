"""Scans with known truth for any operator of the model: those of the package, and a user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from beam_tilt import BeamTilt
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.models import OPTICS
from ptymesh.run.simulate_file import write
from ptymesh.simulate import Simulation, checked, simulate

ERRORS = {
    "beam_tilt": {"shift": 0.8},
    "view_defocus": {"defocus": 3e-5},
    "rpi": {"sample": 0.3},
    "detector_blur": {"blur_width": 0.3},
    "detector_offset": {"offset": 0.4},
    "fly_scan": {"fly_length": 0.3},
    "mode_mixing": {"mixing": 0.3},
    "view_distance": {"further_distance": 3e-4},
    "descan": {"descan": 0.8},
    "view_tilt": {"view_tilt": 0.01},
    "tilted_surface": {"surface_angle": 2.0},
    "surface_propagation": {"along_beam": 3e-5},
    "focal_spread": {"focal_spread": 5e-9},
    "source_size": {"source_width": 0.3},
    "integrating_pixels": {"sensitive_side": 0.3},
    "changing_object": {"object_change": 0.5},
}
#: Of operators that need some; the scan has no lines.
OPTIONS: dict[str, Any] = {"fly_scan": {"path": [6e-8, 4e-8], "points": 4}, "mode_mixing": {"rank": 2}}
#: Scans that operators are for, if not any.
SCANS: dict[str, Any] = {
    "mode_mixing": {"modes": 2},
    "view_distance": {"kind": "near"},
    "detector_offset": {"photons_per_view": 1e3},
    "tilted_surface": {"energy_eV": 92, "pixel_m": 25e-9, "detector_pixel_m": 1e-4, "surface_deg": (0, 40)},
    "surface_propagation": {"energy_eV": 92, "pixel_m": 2e-7, "detector_pixel_m": 1e-5, "surface_deg": (0, 40)},
    "view_tilt": {"kind": "electron", "slices": 3},
    "focal_spread": {"kind": "electron", "slices": 1, "pixel_m": 1.5e-11},
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OPTICS, "_own", {**OPTICS._own, "beam_tilt": BeamTilt})
    yield


def test_every_operator_of_the_package_is_tried() -> None:
    """But those whose unknowns are what the data say."""
    assert set(ERRORS) == {name for name, kind in OPTICS.items() if any(not one.is_fixed for one in kind.unknowns)}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", ERRORS)
def test_truth_of_an_operator(name: str) -> None:
    """The true estimate explains the patterns to the last digits; where the unknown starts, it does not."""
    optics = {name: OPTIONS.get(name, True)}
    scan = {"views": 20, "window": 32, "noise": False, **SCANS.get(name, {})}
    made = simulate(**scan, optics=optics, unknown_errors=ERRORS[name], seed=2)
    (unknown,) = ERRORS[name]
    values, error = made.truth.unknowns[unknown], ERRORS[name][unknown]
    modes = scan.get("modes", 1)
    stack = {"slices": scan.get("slices", 1)}
    if stack["slices"] > 1:
        stack["slice_spacing_m"] = made.truth.slice_spacing_m
    recon = pm.Reconstruction(
        made.measurement, object=stack, optics=optics, precision="double", subpixel="fourier", probe_modes=modes
    )
    start = recon.state.estimate.others[unknown].numpy().copy()
    tiled = {one.name for one in recon.problem.model.tiled}
    start = np.zeros(()) if unknown in tiled else start
    assert (0.8 if values.ndim else 0.3) * error < abs(values.real - start.real).max() <= error * (1 + 1e-12)
    estimate, truth = recon.state.estimate, made.truth.estimate()
    y, x = (estimate.positions[0] - truth.positions[0]).round().long().tolist()
    h, w = truth.extent
    inside = (slice(None), slice(max(y, 0), y + h), slice(max(x, 0), x + w))

    def put(into: torch.Tensor, whole: torch.Tensor) -> None:
        """Set what both frames have of an array of the object's pixels."""
        rows, columns = into[inside].shape[1:]
        into[inside] = whole[:, max(-y, 0) :, max(-x, 0) :][:, :rows, :columns]

    put(estimate.object, truth.object)
    estimate.probe.copy_(truth.probe)
    at_start = recon.problem.residual(estimate)[0]
    if unknown in tiled:
        put(estimate.others[unknown], truth.others[unknown])
    else:
        estimate.others[unknown].copy_(truth.others[unknown])
    assert recon.problem.residual(estimate)[0] < 1e-12 and at_start > 1e-4


def test_without_operators_all_is_as_before() -> None:
    plain = Simulation(views=4, window=16)
    assert "optics" not in plain.as_json() and "unknown_errors" not in plain.as_json()
    with_operator = checked(plain, optics={"view_defocus": True}, unknown_errors={"defocus": 1e-6})
    assert Simulation.parse({**plain.model_dump(), "optics": {"view_defocus": True}}).optics == with_operator.optics
    assert '"defocus":1e-6' in with_operator.as_json() or '"defocus":1e-06' in with_operator.as_json()
    assert simulate(plain).truth.unknowns == {}
    starts = simulate(plain, optics={"view_defocus": {"start": {"defocus": 2e-6}}}).truth.unknowns["defocus"]
    assert np.array_equal(starts, np.full(4, 2e-6))


def test_names_that_no_operator_declares_are_refused() -> None:
    with pytest.raises(
        BadInput, match="No operator of optics declares shift, which unknown_errors names; there are none"
    ):
        Simulation(unknown_errors={"shift": 1.0})
    with pytest.raises(BadInput, match="these have defocus"):
        Simulation(optics={"view_defocus": True}, unknown_errors={"defokus": 1e-6})


def test_files_hold_the_truth(tmp_path: Path) -> None:
    options = checked(views=4, window=16, optics={"view_defocus": True}, unknown_errors={"defocus": 1e-5})
    _, beside = write(options, tmp_path / "scan.cxi")
    found = Result.load(beside).unknowns["defocus"]
    assert np.array_equal(found, simulate(options).truth.unknowns["defocus"])
    assert torch.as_tensor(found).abs().max() > 0


def test_operators_do_not_share_their_errors() -> None:
    both = {"beam_tilt": True, "view_defocus": True}
    made = simulate(views=20, window=32, noise=False, optics=both, unknown_errors={"shift": 1.0, "defocus": 1.0})
    shift, defocus = made.truth.unknowns["shift"], made.truth.unknowns["defocus"]
    assert not np.isin(defocus, shift).any()
