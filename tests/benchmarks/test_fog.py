"""The benchmark of verdicts: its simulators hold what physics says, its labels are what it defines, and it runs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptymesh.diagnosis import CAUSES

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the folder."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module(name)


def test_wavelengths(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = load("fog_scans", monkeypatch)
    assert scans.Optics("photon", 8000.0, 1.0).wavelength_m == pytest.approx(1.549802e-10, rel=1e-6)
    assert scans.Optics("electron", 300e3, 1.0).wavelength_m == pytest.approx(1.96875e-12, rel=1e-5)


def test_free_space_widens_a_beam_as_geometry_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lens's beam has the radius that was asked for, and is in focus after its defocus is travelled back."""
    scans = load("fog_scans", monkeypatch)
    n, radius, spread = 64, 14.0, 10.0
    beam = scans.lens_beam(n, radius, spread)
    intensity, r = np.abs(beam) ** 2, scans._radii(n)
    inside = intensity[r < 1.1 * spread].sum() / intensity.sum()
    assert inside > 0.9 and intensity[r < 0.5 * spread].sum() / intensity.sum() < 0.5
    focus = np.abs(scans.travel(beam, -spread * n / radius)) ** 2
    assert focus[r < 4].sum() / focus.sum() > 0.85


def test_the_twin_has_the_same_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions negated, beam and sample turned and conjugated: what no residual can tell."""
    from dataclasses import replace

    setups = load("fog_setups", monkeypatch)
    setup, _ = setups.xray(np.random.default_rng(3))
    few = replace(setup, positions=np.round(setup.positions[:5]), dose=1e4)

    def turn(wave: np.ndarray) -> np.ndarray:
        return np.roll(np.conj(wave[..., ::-1, ::-1]), 1, axis=(-2, -1))  # about pixel 0 of an even number

    corner = np.array(setup.slices.shape[-2:]) / 2 - setup.window
    turned = replace(few, modes=turn(few.modes), slices=turn(few.slices), positions=corner - few.positions)
    assert np.allclose(turned.expected(), few.expected(), rtol=1e-3, atol=1e-3)


def test_every_kind_has_five_levels_or_says_why_it_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    faults, fog = load("fog_faults", monkeypatch).FAULTS, load("fog", monkeypatch)
    counted = {name: kind for name, kind in faults.items() if not kind.apart}
    assert len(counted) >= 20 and all(len(kind.levels) == 5 and kind.causes for kind in counted.values())
    assert sum(kind.held_back for kind in counted.values()) == 2
    assert {cause for kind in faults.values() for cause in kind.causes} <= {cause.name for cause in CAUSES}
    tasks = fog.all_tasks(held_back=True)
    assert len(set(tasks)) == len(tasks)
    assert sum(task.is_healthy and task.way == "recipe" for task in tasks) == 100
    assert sum(task.way == "auto" for task in tasks) == 40
    without = {task.kind for task in tasks} - {task.kind for task in fog.all_tasks(held_back=False)}
    assert without == {name for name, kind in faults.items() if kind.held_back}


def test_poor_is_what_errs_by_more_than_the_right_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that does no harm is no poor result, and a verdict is right or wrong by that."""
    table = load("fog_table", monkeypatch)

    def row(error: float, verdict: str, cause: str | None = None, **more: Any) -> dict[str, Any]:
        run = {"status": 0, "nrmse": error, "verdict": verdict, "first_cause": cause, "last": []}
        return {"healthy": False, "run": run, "right": {**run, "nrmse": 0.1, "verdict": "good"}, **more}

    rows = [
        row(0.14, "good"),
        row(0.16, "good"),
        row(0.3, "poor", "lag"),
        row(0.3, "poor", "drift"),
        row(0.9, "good", apart="the twin"),
    ]
    for one in rows:
        one |= {"kind": "lag", "level": 0, "way": "recipe", "dose": 1.0, "value": 1, "causes": ["lag"], "words": []}
    assert [table.is_poor(one) for one in rows] == [False, True, True, True, True]
    assert [table.judgement(one) for one in rows[:4]] == ["harmless", "MISSED", "yes", "yes, another cause"]
    found = table.totals(rows)
    assert found["poor called poor"] == "2 of 3" and found["first cause right"] == "1 of 3"
    refused = row(0.0, "good", causes=["far"], words=["position"])
    refused["run"] = {"status": 2, "last": ["ptymesh: one position lies 1 mm off; correct it."]}
    assert table.is_poor(refused) and table.verdict_of(refused["run"]) == "refused"
    assert table.first_cause(refused["run"], refused["causes"], refused["words"])


@pytest.mark.long
def test_two_scans(tmp_path: Path) -> None:
    """A healthy one and one whose views lie 4 pixels from where they are said to; begun again, nothing is left."""
    out = tmp_path / "fog.json"
    command = [sys.executable, str(FOLDER / "fog.py"), "--processes", "1", "--way", "recipe", "--levels", "4"]
    command += ["--only", "spiral path", "scatter", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=280)
    found = json.loads(out.read_text(encoding="utf-8"))
    healthy, scattered = sorted(found["rows"], key=lambda row: not row["healthy"])
    assert healthy["run"]["nrmse"] < 0.1 and healthy["run"]["times"] < 1.2
    assert scattered["run"]["nrmse"] > 1.5 * scattered["right"]["nrmse"] and scattered["run"]["times"] > 3
    assert found["totals"]["poor called poor"] == "1 of 1" and found["totals"]["healthy called poor"] == "0 of 1"
    assert found["totals"]["right models of faulty scans called poor"] == "0 of 1"
    once_more = subprocess.run(command, check=True, env=environment, capture_output=True, timeout=100, text=True)
    assert "1/" not in once_more.stdout.split("|")[0]
    assert json.loads(out.read_text(encoding="utf-8"))["rows"] == found["rows"]
