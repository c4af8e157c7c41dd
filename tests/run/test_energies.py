"""Two scans of one sample by electrons, or photons, of two energies, which share its potential."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from joint import same_bits
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.measurement import Measurement
from ptymesh.physics.scan_energies import interaction_ratio
from ptymesh.run_folder.patterns import model_of, modelled
from ptymesh.simulate import Simulation, Truth, patterns, truths
from stopped_runs import run_to_end_or_stop

POTENTIAL: dict[str, Any] = {"kind": "potential"}
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in ("adam", "lsqml")]
STAGES = [pm.RPIE(epochs=12, batch=10), pm.Adam(epochs=30, batch=10, lr=0.005)]


#: Energies in eV: phases are longer at the second, of electrons by interaction constants, of photons by wavelengths.
ENERGIES = {"electron": (3e5, 6e4), "xray": (1.2e4, 6e3)}


def two_energies(photons: float = 3e4, kind: str = "electron") -> list[Truth]:
    """Simulate electrons or photons of two energies that pass the same potential, at other places."""
    hard, soft = ENERGIES[kind]
    options = Simulation(
        kind=kind,
        views=50,
        window=32,
        photons_per_view=photons,
        slices=1,
        energy_eV=hard,
        amplitude=None if kind == "electron" else (1.0, 1.0),
        further_scans=[{"energy_eV": soft, "overlap": 0.77}],
        probe_guess="true",
        seed=5,
    )
    made = truths(options)
    assert 1.5 < interaction_ratio(made[1].geometry, made[0].geometry) < 3
    return made


def measured(truths: list[Truth]) -> list[Measurement]:
    scans = [one.measurement(np.concatenate(list(patterns(one)))) for one in truths]
    return [replace(scan, name=name, fingerprint=name) for scan, name in zip(scans, ("hard", "soft"), strict=True)]


def error_of(result: pm.Result, first: Truth, ratio: float = 1.0) -> float:
    """Return the rms error of the phase in the first scan where beams have been, without its mean, in rad."""
    assert result.potential is not None
    lit = np.zeros(first.object.shape[-2:], dtype=bool)
    for y, x in np.round(first.nominal).astype(int):
        lit[y + 8 : y + 24, x + 8 : x + 24] = True
    shift = np.round(result.positions_px[0] - first.nominal[0]).astype(int)
    H, W = first.object.shape[-2:]
    found = result.potential[0][shift[0] : shift[0] + H, shift[1] : shift[1] + W] / ratio
    difference = (found - np.angle(first.object[0]))[lit]
    return float(difference.std())


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what one rank ends with; `how`: folder, probe, and number of batches after which to stop."""
    folder = how.get("folder")
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    recon = pm.Reconstruction(
        measured(two_energies()),
        device=world,
        layout=layout,
        seed=3,
        object=POTENTIAL,
        probe=how.get("probe", {}),
        saved=saved,
        precision="single",
    )
    recon.stages = [ENGINES[engine](epochs=3, batch=17)]
    if not run_to_end_or_stop(recon, how):
        return {}
    estimate = recon.state.estimate
    assert estimate.object_values is not None
    return {
        "values": recon.problem.layout.gather_whole(estimate.object_values, estimate).numpy(),
        "object": recon.problem.layout.gather_whole(estimate.object, estimate).numpy(),
        "probe": estimate.probe.numpy(),
        "residual": np.array(recon.problem.residual(estimate)),
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", list(ENERGIES))
def test_both_energies_lead_to_a_better_potential_than_either(kind: str) -> None:
    truths = two_energies(kind=kind)
    scans = measured(truths)
    together = pm.reconstruct(scans, STAGES, object=POTENTIAL, seed=1)
    alone = [pm.reconstruct(scan, STAGES, object=POTENTIAL, seed=1) for scan in scans]
    ratio = float(np.angle(truths[1].object).max() / np.angle(truths[0].object).max())
    both = error_of(together, truths[0])
    errors = [error_of(alone[0], truths[0]), error_of(alone[1], replace(truths[0], nominal=truths[1].nominal), ratio)]
    assert both < 0.9 * min(errors)
    above = [one.attrs["final_residual"] / one.attrs["noise_floor"] for one in (together, *alone)]
    if kind == "electron":
        assert above[0] < min(above[1:])
    else:  # the hard scan alone is as near to its floor
        assert above[0] == pytest.approx(min(above[1:]), rel=0.01)
    views = np.arange(together.positions_px.shape[0])
    joint = pm.Reconstruction(scans, object=POTENTIAL).scan
    model, counts = model_of(together, joint.geometry, joint), joint.patterns.read(views)
    intensities = modelled(model, together, views, joint)
    misfit = ((np.sqrt(intensities) - np.sqrt(counts)) ** 2).sum() / counts.sum()
    assert misfit == pytest.approx(together.attrs["final_residual"], rel=1e-5)


@pytest.mark.parametrize("engine", ["rpie", *OTHERS])
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str) -> None:
    one = outcome(Solo(), "replicated", engine, {})
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, {}):
            same_bits(one, other)


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    how = {"probe": {"scans": "own"}}
    one = outcome(Solo(), "replicated", "rpie", how)
    ranks(2, outcome, "tiled", "rpie", {**how, "folder": tmp_path, "stop": 11})
    same_bits(one, outcome(Solo(), "replicated", "rpie", {**how, "folder": tmp_path}))


def test_what_several_energies_do_not_allow_is_refused() -> None:
    scans = measured(two_energies())
    with pytest.raises(BadInput, match="a transmission is not the same in all"):
        pm.Reconstruction(scans)
    with pytest.raises(BadInput, match="single slice"):
        pm.Reconstruction(scans, object={**POTENTIAL, "slices": 2, "slice_spacing_m": 1e-9})
    with pytest.raises(BadInput, match=r"optics\.view_defocus is of one wavelength"):
        pm.Reconstruction(scans, object=POTENTIAL, optics={"view_defocus": True})
    with pytest.raises(BadInput, match="does not know scans of several energies"):
        next(pm.Reconstruction(scans, object=POTENTIAL).run(pm.CG(epochs=1)))
    photons = [replace(scan, geometry=replace(scan.geometry, radiation="photon")) for scan in scans]
    with pytest.raises(BadInput, match="absorption of photons"):
        pm.Reconstruction(photons, object={**POTENTIAL, "absorption": 0.1})
    with pytest.raises(BadInput, match=r"unknowns\.absorption is one number"):
        recon = pm.Reconstruction(photons, object=POTENTIAL)
        next(recon.run(pm.Adam(epochs=1, unknowns={"object": True, "absorption": True})))


def test_phases_beyond_half_a_turn_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    recon = pm.Reconstruction(measured(two_energies()), object=POTENTIAL, seed=1)
    recon.result()
    assert not [one for one in recon.findings if "half a turn" in one]
    values = recon.state.estimate.object_values
    assert values is not None
    values[0, 20, 20] = 3.5
    recon.result()
    assert "3.5 rad" in recon.findings[-1] and "the highest energy" in capfd.readouterr().err
