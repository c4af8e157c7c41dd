"""What a recipe without stages ends with on simulated scans, beside 75 epochs of Adam.

    python benchmarks/defaults.py

Held-out residuals (a tenth of the views) of two scans of a kind, 200 views of 64 x 64 pixels. They played no part in
the choice of the default.
"""

from __future__ import annotations

from typing import Any

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
from ptymesh.engines import Engine
from ptymesh.recipe.python_arguments import stages_of
from ptymesh.recipe.schema import DEFAULT_STAGES
from ptymesh.simulate import simulate

SEEDS = (21, 22)
KINDS: dict[str, dict[str, Any]] = {
    "X-rays, one mode": {"kind": "xray"},
    "X-rays, three modes": {"kind": "xray", "modes": 3},
    "near field": {"kind": "near"},
    "electrons": {"kind": "electron"},
    "electrons, four slices": {"kind": "electron", "slices": 4},
    "electrons, eight slices": {"kind": "electron", "slices": 8},
}


def ends(kind: dict[str, Any], seed: int, stages: list[Engine]) -> float:
    """Held-out residual of the last epoch."""
    made = simulate(**kind, views=200, window=64, seed=seed)
    slices = len(made.truth.object)
    obj = {"slices": slices, "slice_spacing_m": made.truth.slice_spacing_m} if slices > 1 else {}
    recon = pm.Reconstruction(made.measurement, object=obj, probe_modes=kind.get("modes", 1))
    recon.stages.extend(stages)
    held = [report.held_out for report in recon.loop(hold_out=0.1).epochs()]
    assert held[-1] is not None
    return held[-1]


def main() -> None:
    """A table in markdown."""
    print("| scan | 75 of Adam | default |\n|---|---|---|")
    for name, kind in KINDS.items():
        found = []
        for stages in ([pm.Adam(epochs=75)], stages_of(DEFAULT_STAGES)):
            found.append(", ".join(f"{ends(kind, seed, stages):.6f}" for seed in SEEDS))
        print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
