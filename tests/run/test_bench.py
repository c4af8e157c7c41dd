"""The benchmark measures what it says: real epochs, and not on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.errors import BadInput
from ptymesh.run import machine
from ptymesh.run.speed import bench as module
from ptymesh.run.speed.bench import Plan, Speed, bench, spread_views
from ptymesh.simulate import simulate

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short samples: what is tested is which numbers there are, not how exact they are."""
    monkeypatch.setattr(machine, "WATCH_S", 0.01)


def speeds(**changes: object) -> list[Speed]:
    plan = Plan(**{"engines": ("rpie",), "modes": (1,), "windows": (32,), "views": 20, "epochs": 2} | changes)  # type: ignore[arg-type]
    return [found for found in bench(plan, busy_ok=True) if isinstance(found, Speed)]


def test_every_combination_is_run() -> None:
    found = speeds(engines=("rpie", "epie"), modes=(1, 2), batches=(5, 10), windows=(32, 48), subpixel=("bilinear",))
    assert len({(s.engine, s.modes, s.batch, s.window, s.subpixel) for s in found}) == len(found) == 16
    assert {s.window for s in found} == {(32, 32), (48, 48)}


@pytest.mark.parametrize("turns", [False, True])
def test_cases_take_turns_if_asked_to(turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real, order = module.Measured.step, []
    monkeypatch.setattr(module.Measured, "step", lambda self: (order.append(self.case.batch), real(self))[1])
    found = speeds(batches=(5, 10), subpixel=("none",), turns=turns)
    assert order == ([5, 10, 5, 10, 5, 10] if turns else [5, 5, 5, 10, 10, 10])
    assert [s.batch for s in found] == [5, 10] and all(len(s.seconds) == 2 for s in found)


def test_a_speed_is_that_of_the_median_epoch() -> None:
    (found,) = speeds(modes=(3,), epochs=4, subpixel=("none",))
    assert len(found.seconds) == 4 and found.first_epoch_s > 0 and found.views == 20
    assert found.views_per_s == pytest.approx(20 / np.median(found.seconds))
    assert found.view_modes_per_s == pytest.approx(3 * found.views_per_s)
    assert 0 < found.residual < 1 and found.peak_bytes > 1e7


def test_threads_are_set_and_given_back() -> None:
    before = torch.get_num_threads()
    seen = [
        found["machine"]["threads"] if isinstance(found, dict) else torch.get_num_threads()
        for found in bench(Plan(("rpie",), (1,), windows=(32,), views=20, epochs=1, threads=before + 1), busy_ok=True)
    ]
    assert seen == [before + 1] * 3 and torch.get_num_threads() == before


def test_precision_and_a_scan_of_ones_own() -> None:
    scan = simulate(views=20, window=32).measurement
    plan = Plan(("rpie",), (1,), subpixel=("none",), epochs=1)
    found = [list(bench(replace(plan, precision=p), scan, busy_ok=True))[1] for p in ("single", "double")]
    single, double = (s for s in found if isinstance(s, Speed))
    assert single.views == 20 and single.residual != double.residual, "rounding shows"


def test_the_scan_is_spread_over_larger_objects() -> None:
    found = speeds(sides=(128, 512), subpixel=("none",))
    assert [s.object for s in found] == [(128, 128), (512, 512)]
    scan = simulate(views=20, window=32).measurement
    assert np.ptp(spread_views(scan, 512).positions) > 3 * np.ptp(scan.positions)
    with pytest.raises(BadInput, match="multiple of 32"):
        spread_views(scan, 500)
    with pytest.raises(BadInput, match=r"does not fit an object of 32 pixels; give \d+ or more") as error:
        spread_views(scan, 32)
    spread_views(scan, int(str(error.value).split("give ")[1].split()[0]))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"engines": ("nonsense",)}, "no engine 'nonsense'"),
        ({"subpixel": ("spline",)}, "no sub-pixel method 'spline'"),
        ({"modes": (0,)}, "Among the modes is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_plans_that_make_no_sense(changes: dict, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        Plan(**{"engines": ("rpie",)} | changes)


def test_a_busy_machine_is_refused_and_the_load_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "WATCH_S", 0.3)  # the system counts processor time in hundredths of a second
    burn = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(1.0)
        with pytest.raises(BadInput, match=r"Other processes keep \d+\.\d of \d+ cores busy.*python.*--busy-ok"):
            next(bench(Plan(("rpie",))))
        about = next(bench(Plan(("rpie",)), busy_ok=True))
    finally:
        burn.kill()
        burn.wait()
    assert isinstance(about, dict) and about["machine"]["cores_busy_with_others"] > machine.BUSY_CORES


def test_an_idle_machine_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_busy_seconds", machine._own_seconds)
    done = threading.Event()

    def burn() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        load = machine.refuse_if_busy(0.5)
    finally:
        done.set()
        thread.join()
    assert load < 0.1, "what this process does itself is no load, but for a tick of the system's clock"


def test_the_machine_is_described() -> None:
    about = machine.describe(CPU, 3)
    assert about["threads"] == 3 and about["torch"] == torch.__version__ and about["gpu"] is None
    assert about["cpu"] and 1 <= about["cores"] <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget the peak of a process")
def test_the_peak_is_forgotten() -> None:
    body = """
import numpy, torch
from ptymesh.run import machine
for count in (50_000_000, 100):
    machine.forget_peak(torch.device("cpu"))
    numpy.ones(count)
    print(machine.peak_bytes(torch.device("cpu")))
"""  # in a process of its own: what other tests have left in this one's memory is anybody's guess
    said = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True).stdout
    large, small = (int(line) for line in said.split())
    assert large - small > 300_000_000


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        module.save(tmp_path / "nowhere" / "b.json", {}, [])
