"""Many scans with one recipe: each is run once, what failed again, and what was stopped goes on."""

import csv
import math
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
from ptymesh.beamtime.orientation import orientation_settings
from ptymesh.beamtime.scan_run import ScanRun
from ptymesh.distributed import devices
from ptymesh.distributed.processes import fate_of
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.launcher import device_shares
from ptymesh.plot.contact_sheet import SheetPicture, contact_sheet
from ptymesh.recipe.schema import Recipe
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


class Ended:
    """A process that runs until it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def poll(self) -> int | None:
        self.looks -= 1
        return None if self.looks > 0 else 0

    def send_signal(self, number: int) -> None:
        raise AssertionError

    wait = send_signal


def started_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdicts: list[str], options: BatchOptions
) -> list[tuple[ScanRun, dict[str, str]]]:
    """Return the runs that a batch starts, with their environments, in which nothing is computed."""
    runs: list[tuple[ScanRun, dict[str, str]]] = []

    def start(self: ScanRun, parent: int, environment: dict[str, str]) -> Ended:
        runs.append((self, environment))
        return Ended(3 if len(runs) % 2 else 5)

    def finish(self: ScanRun, status: int, seconds: float) -> ScanOutcome:
        return ScanOutcome(str(self.scan), str(self.folder), status, verdicts[int(self.scan.stem)], residual=0.1)

    monkeypatch.setattr(ScanRun, "start", start)
    monkeypatch.setattr(ScanRun, "finish", finish)
    scans = [tmp_path / f"{number}.cxi" for number in range(len(verdicts))]
    for scan in scans:
        scan.write_bytes(b"-")
    (tmp_path / "out").mkdir()
    ScanBatch(scans, tmp_path / "out", None, (), options).run()
    return runs


def test_scans_at_the_same_time_share_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan that is alone has all cores; of those behind it, each has GPUs and a part of the cores to itself."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_shares, "cores", lambda: 8)
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 4)
    options = BatchOptions(jobs=2, ranks=2, device="cuda")
    runs = started_by(monkeypatch, tmp_path, ["good"] * 6, options)
    assert runs[0][1] == {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert {environment["CUDA_VISIBLE_DEVICES"] for _, environment in runs[1:3]} == {"0,1", "2,3"}
    assert {environment["OMP_NUM_THREADS"] for _, environment in runs[1:]} == {"2"}
    assert {environment["CUDA_VISIBLE_DEVICES"] for _, environment in runs[3:]} == {"0,1", "2,3"}
    assert runs[1][0].launching == ["--device", "cuda", "--ranks", "2"]
    with pytest.raises(BadInput, match="--ranks is 5 and there are 4 GPUs; ask for 4"):
        ScanBatch([tmp_path / "0.cxi"], tmp_path, None, (), BatchOptions(ranks=5))


def result_of(folder: Path, name: str) -> None:
    """Write a result whose scan was found to lie turned to the detector."""
    recipe = Recipe.parse(
        {"data": {"path": "/a.cxi", "transpose": True}, "positions": {"rotation_deg": 170.0, "flip_y": True}}
    )
    numbers = {"scan_geometry": {"rotation": math.radians(15)}}
    made = Result(
        object=np.ones((1, 8, 8), np.complex64),
        probe=np.ones((1, 4, 4), np.complex64),
        positions_px=np.zeros((3, 2)),
        weights=np.ones((3, 1)),
        recipe=recipe.to_yaml(),
        parameters=numbers,
    )
    (folder / name).mkdir(parents=True)
    made.save(folder / name / "result.h5")


@pytest.mark.parametrize("hand_on", [True, False])
def test_orientation_is_handed_on_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_on: bool) -> None:
    """The scan behind the first good one takes its flips, and the rotation that its run has refined."""
    options = BatchOptions(hand_on=hand_on, hand_on_orientation=True)
    result_of(tmp_path / "results", "1")
    settings = orientation_settings(tmp_path / "results" / "1" / "result.h5")
    monkeypatch.setattr("ptymesh.beamtime.batch.orientation_settings", lambda path: [*settings, path.parent.name])
    runs = started_by(monkeypatch, tmp_path, ["poor", "good", "good"], options)
    assert runs[1][0].settings == []  # nothing is handed on by a poor result
    *found, name = runs[2][0].settings[-len(settings) - 1 :]
    assert found == settings and name == "1"
    assert any("kind: result" in one for one in runs[2][0].settings) == hand_on
    made = Recipe.from_yaml("data: {path: /b.cxi}", settings)
    assert made.data.transpose and not made.data.flip_y and made.positions.flip_y
    assert made.positions.rotation_deg == pytest.approx(-175)


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
    ("words", "said"),
    [(["none*.cxi"], "There is no file"), (["a.yaml"], "--recipe a.yaml"), (["SCAN", "--jobs", "0"], "give 1 or more")],
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
