"""Two simulated scans of one object, at other places and with a shift that their positions do not tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ptymesh as pm
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.measurement import Measurement
from ptymesh.simulate.simulation import Simulation, Truth, patterns, truth
from stopped_runs import end_of_run


@dataclass
class TwoScans:
    """Two scans, their true probes (M, h, w) and object, and by how much the second one is shifted."""

    scans: list[Measurement]
    truths: list[Truth]
    shift_px: np.ndarray


def two_scans(
    *,
    shift_px: tuple[float, float] = (1.6, -1.2),
    dose: float = 1.0,
    own_probes: bool = False,
    views: int = 60,
    window: int = 32,
    photons: float = 1e5,
    seed: int = 4,
) -> TwoScans:
    """Simulate both.

    Args:
        shift_px: true shift (y, x) of the second scan.
        dose: photons of a view of the second scan over those of the first.
        own_probes: True if the second scan's probe is another one.
        views: of each scan.
        window: side in pixels.
        photons: of a view of the first scan.
        seed: of the simulation.
    """
    options = Simulation(kind="xray", views=views, window=window, photons_per_view=photons, overlap=0.6, seed=seed)
    first = truth(options)
    centre = first.nominal.mean(axis=0)
    turned = (first.nominal - centre)[:, ::-1] * np.array([0.93, -0.93]) + centre
    shift, probe = np.array(shift_px), first.probe * np.sqrt(dose)
    if own_probes:  # another defocus: a parabola of phase across the spectrum
        fy, fx = np.meshgrid(*2 * [np.fft.fftfreq(window)], indexing="ij")
        probe = np.fft.ifft2(np.fft.fft2(probe) * np.exp(-1j * 90 * (fy**2 + fx**2)))
    other = options.model_copy(update={"seed": seed + 1, "photons_per_view": photons * dose})
    second = replace(first, options=other, nominal=turned, positions=turned + shift, probe=probe)
    scans = [one.measurement(np.concatenate(list(patterns(one)))) for one in (first, second)]
    named = [replace(scan, name=name, fingerprint=name) for scan, name in zip(scans, ("left", "right"), strict=True)]
    return TwoScans(named, [first, second], shift)


def four_scans() -> list[Measurement]:
    """Four scans of one object: both of `two_scans`, and each once more from the other end and elsewhere."""
    both = two_scans(dose=2.0)
    found = list(both.scans)
    for number, one in enumerate(both.truths):
        turned = one.nominal.max(axis=0) + one.nominal.min(axis=0) - one.nominal
        options = one.options.model_copy(update={"seed": 20 + number})
        moved = replace(one, options=options, nominal=turned, positions=turned + np.array([0.7, -0.5 * number]))
        scan = moved.measurement(np.concatenate(list(patterns(moved))))
        found.append(replace(scan, name=f"turned-{number}", fingerprint=f"turned-{number}"))
    return found


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one rank ends with; `how`: scans, their number, 2 or 4; probe and object, their options; folder, from whose
    checkpoint the run goes on, or where it leaves one after so many batches, stop."""
    number, folder = how.get("scans", 2), how.get("folder")
    scans = two_scans(dose=2.0, own_probes=True).scans if number == 2 else four_scans()
    own, models = how.get("object", {}).get("scans") == "own", {"scan_shift": {"scans": number}}
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    recon = pm.Reconstruction(
        scans,
        device=world,
        layout=layout,
        seed=3,
        probe=how.get("probe", {}),
        object=how.get("object"),
        saved=saved,
        precision="single",
    )
    recon.stages = [ENGINES[engine](epochs=3, batch=17, models={} if own else models)]
    found = end_of_run(recon, how, "positions")
    numbers = np.array(list(recon.state.estimate.parameters.get("scan_shift", {}).values()))
    return found and {**found, "numbers": numbers}


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name
