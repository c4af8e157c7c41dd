"""A case is run by the command line, and its result held against the truth."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml
from fog_scans import Setup, write_scan
from fog_setups import Case

#: The stages of a recipe that names none.
STAGES: tuple[dict[str, Any], ...] = (
    {"engine": "rpie", "epochs": 5, "batch": 32},
    {"engine": "adam", "epochs": 20, "batch": 32},
)
#: Seconds after which a command is stopped.
PATIENCE_S = 900.0
#: Times the noise floor from which a result counts as poor, of a version that gives no verdict of its own.
POOR = 1.5
#: What a verdict can be.
VERDICTS = ("good", "poor", "failed", "unknown")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status, what it printed, and the seconds of one core that it took."""

    status: int
    output: str
    seconds: float


def command_of_recipe() -> Any:
    """Return the entry point of the command line, with what a run imports imported."""
    import torch

    import ptymesh.compare.align
    import ptymesh.diagnosis.report
    import ptymesh.kernels.cpu.compiled.windows
    import ptymesh.run.session
    from ptymesh.cli.main import main

    assert torch and ptymesh
    return main


def run_command(arguments: list[str], folder: Path) -> Ended:
    """Run `ptymesh ARGUMENTS` in a process of its own, in this folder; what it imports is shared with this one."""
    main, log = command_of_recipe(), folder / "output.txt"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(main, arguments, folder, log)
    stop = time.monotonic() + PATIENCE_S
    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > stop:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    seconds = used.ru_utime + used.ru_stime
    return Ended(os.waitstatus_to_exitcode(status), log.read_text(encoding="utf-8", errors="replace"), seconds)


def _become(main: Any, arguments: list[str], folder: Path, log: Path) -> None:
    """Turn this process into the command; it never returns."""
    status = 1
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(folder)
        sys.argv = ["ptymesh", *arguments]
        main()
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_case(setup: Setup, case: Case, folder: Path, way: str, diagnosed: bool = True) -> dict[str, Any]:
    """Write the case, run it, and return what came of it.

    Args:
        setup: the truth.
        case: file and recipe.
        folder: to be made.
        way: recipe or auto.
        diagnosed: also ask `ptymesh diagnose`.
    """
    folder.mkdir()
    positions = case.scan.positions_m if case.positions_m is None else case.positions_m
    data = write_scan(case.scan, folder, positions)
    if way == "auto":
        sets = [f"data.{key}={_in_yaml(value)}" for key, value in data.items() if key != "path"]
        sets += ["output.figures=false"]
        arguments = ["run", str(data["path"]), "--out", "out"]
        arguments += [part for one in sets for part in ("--set", one)]
    else:
        recipe = dict(case.recipe)
        stages = [_merged(stage, recipe.get("stage", {})) for stage in STAGES]
        recipe = _merged({"data": data, "stages": stages, "output": {"dir": "out", "figures": False}}, recipe)
        recipe.pop("stage", None)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        arguments = ["run", "recipe.yaml"]
    arguments.append("--strict")
    ended = run_command(arguments, folder)
    said = [line for line in ended.output.splitlines() if line.strip()]
    found: dict[str, Any] = {"status": ended.status, "cpu_s": round(ended.seconds, 2), "last": said[-4:]}
    result = folder / "out" / "result.h5"
    if result.exists():
        found |= _features(result, case)
        found |= _diagnosis(result, folder) if diagnosed else {}
        found |= compare(result, setup, len(case.scan.patterns))
    return found


def _in_yaml(value: Any) -> str:
    """Return the value as `--set` takes it."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return a with what b says, group by group."""
    both = dict(a)
    for key, value in b.items():
        both[key] = _merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def _features(path: Path, case: Case) -> dict[str, Any]:
    """Return what the result says of itself, and what thresholds could be set by."""
    with h5py.File(path) as file:
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
        probe, obj = file["probe"][()], file["object"].shape
        positions = file["positions_px"][()]
        residuals = file["history/residual"][()]
        held_out = file["history/held_out"][()] if "history/held_out" in file else np.empty(0)
        of_views = file["residuals"][()] if "residuals" in file else np.empty(0)
    floor, residual = attributes.get("noise_floor"), attributes.get("final_residual")
    counts = float(case.scan.patterns.sum(dtype=np.float64))
    lit = _lit((obj[-2], obj[-1]), probe, positions)
    stage = case.recipe.get("stage", {})
    fitted = 2 * lit * obj[0] + 2 * probe.size + (2 * len(positions) if "positions" in stage else 0)
    found = {
        "residual": residual,
        "floor": floor,
        "verdict": attributes.get("verdict"),
        "first_cause": attributes.get("first_cause"),
        "counts_per_pixel": counts / case.scan.patterns.size,
        "views": len(positions),
        "fitted": fitted,
        "last_epochs": [float(f"{one:.5g}") for one in residuals[-6:]],
        "attributes": {k: v for k, v in attributes.items() if "floor" in k or "verdict" in k or "cause" in k},
    }
    if len(held_out) and np.isfinite(held_out[-1]):
        found["held_out"] = float(held_out[-1])
    if len(of_views):  # spread over the views: quantiles of their residuals
        found["of_views"] = [float(f"{one:.4g}") for one in np.nanquantile(of_views, (0.05, 0.5, 0.95, 1.0))]
    if residual and floor:
        found["times"] = residual / floor
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return (
        value.item() if isinstance(value, np.generic) else (value.tolist() if isinstance(value, np.ndarray) else value)
    )


def _lit(shape: tuple[int, int], probe: np.ndarray, positions: np.ndarray) -> int:
    """Return how many object pixels got more than a hundredth of the largest exposure."""
    if shape[0] * shape[1] > 4_000_000:
        return 0
    light, intensity = np.zeros(shape), (np.abs(probe.reshape(-1, *probe.shape[-2:])) ** 2).sum(axis=0)
    for y, x in np.clip(np.rint(positions).astype(int), 0, None):
        part = light[y : y + len(intensity), x : x + intensity.shape[1]]
        part += intensity[: part.shape[0], : part.shape[1]]
    return int((light > 0.01 * light.max()).sum())


def _diagnosis(path: Path, folder: Path) -> dict[str, Any]:
    """Return the causes that `ptymesh diagnose` names, the likeliest first, and the numbers of all."""
    (folder / "diagnosis").mkdir()
    told = run_command(["diagnose", str(path), "--json"], folder)
    try:
        report = json.loads(told.output[told.output.index("{") :])
    except ValueError:
        return {"diagnosis_failed": told.output[-300:]}
    numbers = {name: one["number"] for name, one in report["numbers"].items()}
    numbers = {name: None if n is None else float(f"{n:.4g}") for name, n in numbers.items()}
    return {
        "named": [one["cause"] for one in report["findings"]],
        "numbers": numbers,
        "diagnosis_cpu_s": round(told.seconds, 2),
    }


def compare(path: Path, setup: Setup, views: int) -> dict[str, Any]:
    """Return the object's error against the truth in the region that the scan lit.

    Global phase, scale, ramp and shift are free; so is the twin, in the far field with one slice.

    Args:
        path: of the result.
        setup: the truth.
        views: in the data set.
    """
    from ptymesh.compare.align import align, twin
    from ptymesh.errors import BadInput

    with h5py.File(path) as file:
        found = np.prod(file["object"][()].astype(complex), axis=0)
        positions = file["positions_px"][()]
    truth, region = setup.projection(), setup.region()
    if len(positions) == len(setup.positions):
        start = np.median(setup.positions - positions, axis=0)
    else:
        start = setup.positions.min(axis=0) - positions.min(axis=0)
    moved, rest = _on_canvas(found, truth.shape, np.rint(start).astype(int)), start - np.rint(start)
    seen = moved != 0
    errors = []
    candidates: list[Any] = [(moved, seen, (float(rest[0]), float(rest[1])))]
    if setup.distance is None and len(setup.slices) == 1:
        candidates.append((twin(moved), seen[::-1, ::-1], None))
    for image, mask, near in candidates:
        try:
            errors.append(float(align(image, truth, region, mask, near).nrmse))
        except (BadInput, ValueError, np.linalg.LinAlgError):
            errors.append(float("inf"))
    nrmse = min(errors[0], errors[-1] if errors[-1] < 0.6 * errors[0] else np.inf)
    return {"nrmse": nrmse if np.isfinite(nrmse) else None, "is_twin": nrmse != errors[0]}


def _on_canvas(image: np.ndarray, shape: tuple[int, ...], offset: np.ndarray) -> np.ndarray:
    """Return the image moved by whole pixels onto a canvas of this shape, 0 where there is none of it."""
    canvas = np.zeros(shape, complex)
    low = np.maximum(offset, 0)
    high = np.minimum(offset + image.shape, shape)
    if (high > low).all():
        a, b = low - offset, high - offset
        canvas[low[0] : high[0], low[1] : high[1]] = image[a[0] : b[0], a[1] : b[1]]
    return canvas


def first_cause(run: dict[str, Any], causes: list[str], words: list[str]) -> bool:
    """Return True if the cause that a run names first is one of these, or its refusal says one of the words."""
    said = " ".join(run["last"]).lower()
    if run["status"] == 2:
        return any(re.search(word, said) for word in words) or any(c.replace("_", " ") in said for c in causes)
    return (named := name_of(run)) is not None and named in causes


def name_of(run: dict[str, Any]) -> str | None:
    """Return the cause that is named first."""
    if run.get("verdict") in VERDICTS:
        cause = run.get("first_cause")
        return str(cause) if cause else None
    return (run.get("named") or [None])[0]


def verdict_of(run: dict[str, Any]) -> str:
    """Return good, poor, failed, refused, crashed or unknown."""
    if run["status"] == 2:
        return "refused"
    if run["status"] == 3:
        return "failed"
    if run["status"] not in (0, 4):
        return "crashed"
    if run.get("verdict") in VERDICTS:
        return str(run["verdict"])
    times = run.get("times")
    return "unknown" if times is None else ("poor" if times > POOR else "good")
