"""The floor that benchmarks/floor.py measures beside engines: what it counts, and that it is not counted as theirs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.run import machine
from ptymesh.run.speed.bench import Plan

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # behind tests, which has a module `ranks` too
import floor
from floor import Floor, pairs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short samples: what is tested is which numbers there are, not how exact they are."""
    monkeypatch.setattr(floor, "TRY_S", 0.002)
    monkeypatch.setattr(floor, "SAMPLE_S", 0.002)
    monkeypatch.setattr(machine, "WATCH_S", 0.01)


def speeds(**changes: object) -> list[dict[str, Any]]:
    plan = Plan(**{"engines": ("rpie",), "modes": (1,), "windows": (32,), "views": 20, "epochs": 2} | changes)  # type: ignore[arg-type]
    return floor.speeds(plan, None)


def test_the_floor_counts_pairs_of_transforms() -> None:
    assert pairs("far_field", "none") == pairs("far_field", "bilinear") == 1
    assert pairs("far_field", "fourier") == 2 and pairs("fresnel", "fourier") == 3


@pytest.mark.parametrize("turns", [False, True])
def test_fourier_subpixel_halves_the_floor(turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Floor, "sample", lambda self: 1000.0)
    none, fourier = speeds(subpixel=("none", "fourier"), turns=turns)
    assert (none["floor_view_modes_per_s"], fourier["floor_view_modes_per_s"]) == (1000.0, 500.0)
    assert none["fraction"] == none["view_modes_per_s"] / 1000 and len(none["seconds"]) == 2


def test_the_best_chunk_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: 10.0, 2: 30.0, 4: 20.0}
    monkeypatch.setattr(Floor, "_transforms", lambda self, chunk, seconds: rates[chunk])
    made = Floor((8, 8), CPU, chunks=(1, 2, 4))
    assert made.tried == rates and made.chunk == 2 and made.sample() == 30.0


def test_larger_windows_have_lower_floors() -> None:
    small, large = (max(Floor((n, n), CPU, chunks=(4,)).sample() for _ in range(20)) for n in (16, 256))
    assert small > 20 * large, "256 times the pixels"


def test_double_precision_is_timed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[torch.dtype] = []
    monkeypatch.setattr(Floor, "sample", lambda self: timed.append(self.dtype) or 1000.0)
    for precision in ("single", "double"):
        speeds(precision=precision, subpixel=("none",), epochs=1)
    assert timed == [torch.complex64] * 2 + [torch.complex128] * 2


def test_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, before = tmp_path / "floor.json", torch.get_num_threads()
    options = ["--engines", "rpie", "--modes", "1", "--windows", "32", "--views", "20", "--epochs", "1", "--busy-ok"]
    monkeypatch.setattr(sys, "argv", ["floor.py", *options, "--threads", "1", "--out", str(out)])
    try:
        floor.main()
    finally:
        torch.set_num_threads(before)
    found = json.loads(out.read_text())
    assert found["machine"]["threads"] == 1 and found["data"] == "simulated"
    assert [case["subpixel"] for case in found["cases"]] == ["none", "fourier"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget the peak of a process")
def test_the_floor_s_memory_is_not_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Floor, "sample", lambda self: 1000.0)
    (lean,) = speeds(subpixel=("none",))
    monkeypatch.setattr(Floor, "sample", lambda self: float(np.ones(50_000_000)[0]))
    (beside,) = speeds(subpixel=("none",))
    assert beside["peak_bytes"] < lean["peak_bytes"] + 200_000_000, "half of what the floor takes"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_floor_of_a_gpu() -> None:
    made = Floor((128, 128), torch.device("cuda"))
    assert 1e10 < made.bandwidth() < 1e14, "bytes per second"
    (found,) = speeds(device="cuda", subpixel=("none",))
    assert found["floor_view_modes_per_s"] > 0 and found["peak_bytes"] > 0
