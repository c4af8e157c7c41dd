"""Many scans with one recipe: each is run once, what failed again, and what was stopped goes on."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ptymesh.beamtime import BatchOptions, ScanBatch, ScanOutcome
from ptymesh.beamtime.batch import folder_names, natural_order
from ptymesh.beamtime.scan_run import ScanRun
from ptymesh.distributed.processes import fate_of
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.plot.contact_sheet import SheetPicture, contact_sheet
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

RECIPE = "data: {path: none.cxi}\nstages: [{engine: rpie, epochs: EPOCHS, batch: 8}]\noutput: {figures: false}\n"


@pytest.fixture(scope="module")
def beamtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three scans with the same beam, one file that is none, and a recipe."""
    folder = tmp_path_factory.mktemp("beamtime")
    for number in (1, 2, 10):
        write(checked(views=30, window=32, seed=5), folder / f"scan{number}.cxi")
    (folder / "scan3.cxi").write_text("nonsense")
    (folder / "recipe.yaml").write_text(RECIPE.replace("EPOCHS", "12"))
    return folder


def command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "ptymesh", "batch", *map(str, words)]


def rows(out: Path) -> dict[str, dict[str, str]]:
    with (out / "batch.csv").open(newline="") as file:
        return {Path(row["folder"]).name: row for row in csv.DictReader(file)}


@pytest.mark.forked(5)
def test_scans_are_run_once_and_what_failed_again(beamtime: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (str(beamtime / "scan*.cxi"), "--recipe", beamtime / "recipe.yaml", "--out", out)
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2, done.stderr  # the status of what failed
    assert "status 2: /" in done.stdout and "no known format" in done.stdout
    found = rows(out)
    assert list(found) == ["scan1", "scan2", "scan3", "scan10"]
    assert [found[name]["status"] for name in found] == ["0", "0", "2", "0"]
    assert (out / "batch.png").stat().st_size > 1000
    before = (out / "scan2" / "result.h5").stat().st_mtime_ns
    fixed = tmp_path / "scans"
    shutil.copytree(beamtime, fixed)
    shutil.copy2(beamtime / "scan2.cxi", fixed / "scan3.cxi")
    # the same scans, of which one has been mended: it alone is run
    shutil.copy2(fixed / "scan3.cxi", beamtime / "scan3.cxi")
    try:
        again = subprocess.run(command(*words), capture_output=True, text=True, timeout=200, check=False)
    finally:
        (beamtime / "scan3.cxi").write_text("nonsense")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("as before") == 3
    assert (out / "scan2" / "result.h5").stat().st_mtime_ns == before


@pytest.mark.forked
def test_the_probe_of_the_first_good_scan_is_handed_on(beamtime: Path, tmp_path: Path) -> None:
    scans = [beamtime / f"scan{number}.cxi" for number in (1, 2, 10)]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("EPOCHS", "60"))
    handed = ScanBatch(scans, tmp_path / "handed", recipe, (), BatchOptions(jobs=2)).run()
    assert [one.verdict for one in handed] == ["good"] * 3
    alone = ScanBatch(scans[1:2], tmp_path / "alone", recipe, (), BatchOptions(hand_on=False)).run()
    start = Result.load(tmp_path / "handed" / "scan2" / "result.h5").recipe
    assert "scan1" in start and "kind: result" in start
    assert "kind: result" not in Result.load(tmp_path / "alone" / "scan2" / "result.h5").recipe
    assert handed[1].residual is not None and alone[0].residual is not None
    assert handed[1].residual < alone[0].residual


@pytest.mark.forked(1)  # with one spare, which becomes its only child
def test_it_goes_on_after_a_kill(beamtime: Path, tmp_path: Path) -> None:
    """Runs end with the command that started them, and are gone on with from their checkpoints."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe.write_text(RECIPE.replace("EPOCHS", "3000").replace("figures: false", "figures: false, checkpoint_every: 5"))
    words = (beamtime / "scan1.cxi", "--recipe", recipe, "--out", out)
    started = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manifest = out / "scan1" / "checkpoint" / "manifest.json"
    while not manifest.exists():
        assert started.poll() is None
        time.sleep(0.05)
    (child,) = (int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == started.pid)
    started.send_signal(signal.SIGKILL)
    started.wait()
    until = time.monotonic() + 60
    while fate_of(child) != "gone":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert ScanRun(beamtime / "scan1.cxi", out / "scan1", recipe, ()).arguments()[0] == "resume"
    assert ScanRun(beamtime / "scan1.cxi", out / "scan1", recipe, ["seed=1"]).arguments()[0] == "run"


def _parent(pid: int) -> int:
    """Return the parent of a process, 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_natural_order() -> None:
    names = [Path(name) for name in ("scan10.cxi", "scan2.cxi", "a/scan1.cxi", "scan2b.cxi")]
    assert sorted(names, key=natural_order) == [
        Path("a/scan1.cxi"),
        Path("scan2.cxi"),
        Path("scan2b.cxi"),
        Path("scan10.cxi"),
    ]


def test_two_scans_of_one_name() -> None:
    with pytest.raises(BadInput, match="would both get the folder scan"):
        folder_names([Path("a/scan.cxi"), Path("b/scan.h5")])


@pytest.mark.forked
@pytest.mark.parametrize(
    ("words", "said"), [(["none*.cxi"], "There is no file"), (["SCAN", "--jobs", "0"], "give 1 or more")]
)
def test_what_is_refused(beamtime: Path, tmp_path: Path, words: list[str], said: str) -> None:
    words = [str(beamtime / "scan1.cxi") if word == "SCAN" else word for word in words]
    done = subprocess.run(
        command(*words, "--out", tmp_path / "out"), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2 and said in done.stderr


def test_a_sheet_has_a_picture_of_each_result() -> None:
    rng = np.random.default_rng(0)
    objects = [np.exp(1j * rng.normal(size=(1, 40, 50))) for _ in range(6)]
    pictures = [SheetPicture(f"scan{i}: good", one, pixel_size_m=(1e-8, 1e-8)) for i, one in enumerate(objects)]
    figure = contact_sheet([*pictures, SheetPicture("scan9: status 2", is_good=False)])
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == [*(f"scan{i}: good" for i in range(6)), "scan9: status 2"]
    assert sum(bool(axes.images) for axes in figure.axes) >= 6


def test_a_result_that_is_gone_is_made_again(beamtime: Path, tmp_path: Path) -> None:
    run = ScanRun(beamtime / "scan1.cxi", tmp_path / "scan1", None, ())
    run.folder.mkdir()
    assert run.finished() is None
    (run.folder / "result.h5").write_bytes(b"")
    run._write({"asked": run.request(), "outcome": vars(ScanOutcome("scan1.cxi", "scan1", 0, "good"))})
    assert run.finished() is not None
    assert ScanRun(run.scan, run.folder, None, ["seed=1"]).finished() is None  # another recipe
    (run.folder / "result.h5").unlink()
    assert run.finished() is None
