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
from ptymesh.simulate import Simulated, Simulation, Truth, simulate_scans
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
    made = simulate_scans(options, further_scans=[second_scan(shift_px, dose * photons, 7e-5 if own_probes else 0.0)])
    return TwoScans(named(made, ("left", "right")), [one.truth for one in made], np.array(shift_px))


def second_scan(shift_px: tuple[float, float], photons: float, defocus_m: float = 0.0) -> dict[str, Any]:
    """Options of the second scan: a jittered raster, elsewhere than it says, with so many photons and such a probe."""
    return {"scan": "jitter", "shift_px": shift_px, "photons_per_view": photons, "defocus_m": defocus_m}


def named(made: list[Simulated], names: tuple[str, ...]) -> list[Measurement]:
    """The measurements, by these names."""
    return [replace(one.measurement, name=name, fingerprint=name) for one, name in zip(made, names, strict=True)]


def four_scans() -> list[Measurement]:
    """Four scans of one object: as both of `two_scans`, and two more elsewhere."""
    options = Simulation(kind="xray", views=60, window=32, photons_per_view=1e5, overlap=0.6, seed=4)
    others = [{"scan": "jitter", "shift_px": (0.7, shift)} for shift in (0.4, -0.5)]
    made = simulate_scans(options, further_scans=[second_scan((1.6, -1.2), 2e5), *others])
    return named(made, ("left", "right", "jitter-1", "jitter-2"))


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
