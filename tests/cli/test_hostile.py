"""Every command with paths and numbers that cannot be: status 2 and one sentence, before anything is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptymesh.cli import main as module
from ptymesh.cli.running import refuse_to_overwrite
from ptymesh.errors import BadInput
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

Run = Callable[..., tuple[int, str]]

#: Commands with FILE where a path belongs, and their options that are paths.
PATHS = {
    "inspect": (["FILE"], ["--figure"]),
    "convert": (["FILE", "out.cxi"], []),
    "view": (["FILE"], ["--out"]),
    "compare": (["FILE", "r.yaml"], ["--figure"]),
    "resume": (["FILE"], ["--scratch"]),
    "simulate": (["FILE"], []),
    "stream": (["FILE", "tcp://127.0.0.1:*"], []),
    "plan": (["FILE"], []),
    "tune": (["FILE"], ["--out"]),
    "orient": (["FILE"], ["--out"]),
    "calibrate": (["FILE"], ["--out"]),
    "batch": (["FILE", "--out", "o"], ["--recipe"]),
    "bench": (["FILE"], ["--out"]),
    "slurm": (["FILE"], ["--out"]),
    "launch": (["FILE"], []),
    "run": (["FILE"], ["--out", "--scratch"]),
    "scaling": (["FILE"], ["--out"]),
    "demo": ([], ["--out"]),
    "doctor": ([], ["--dir"]),
}
HOSTILE = {"home": "~nosuch/x", "long": "a" * 300, "through": "r.yaml/x", "loop": "loop/x", "empty": ""}


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan, so that what is refused is not refused for want of one."""
    path, _ = write(checked(views=30, window=32), tmp_path_factory.mktemp("scan") / "scan.cxi")
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], scan: Path) -> Run:
    """The command line in this process, in a folder with a recipe: status and the last line of standard error."""
    monkeypatch.delenv(module.DEBUG, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(f"data: {{path: {scan}}}\n")
    Path("loop").symlink_to("loop")

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", *arguments])
        with pytest.raises(SystemExit) as left:
            module.main()
        return int(left.value.code or 0), (capfd.readouterr().err.strip().splitlines() or [""])[-1]

    return call


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("command", PATHS)
def test_paths_that_cannot_be(run: Run, command: str, hostile: str) -> None:
    arguments, options = PATHS[command]
    before = sorted(os.listdir())
    tries = [[HOSTILE[hostile] if one == "FILE" else one for one in arguments]] if arguments else []
    there = ["r.yaml" if one == "FILE" else one for one in arguments]
    tries += [[*there, option, HOSTILE[hostile]] for option in options]
    for given in tries:
        status, said = run(command, *given)
        assert status == 2 and said.startswith(("ptymesh: ", "Error: ")) and said.endswith((".", "?")), said
        assert "unexpected" not in said and len(said) < 400
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("command", ["inspect", "view", "compare", "plan", "tune", "orient", "slurm", "run", "bench"])
def test_a_pipe_is_not_waited_for(run: Run, command: str) -> None:
    os.mkfifo("pipe")
    status, said = run(command, *["pipe" if one == "FILE" else one for one in PATHS[command][0]])
    assert status == 2 and said.endswith(".") and "unexpected" not in said


@pytest.mark.sample(21)
@pytest.mark.parametrize(
    "line",
    [
        *(f"simulate new.cxi --{name} {value}" for name, value in (
            ("views", 0), ("views", -1), ("views", 10**9), ("views", 10**30), ("window", 0), ("window", 10**9),
            ("modes", 0), ("modes", 10**9), ("slices", 10**9), ("slices", -1), ("overlap", "nan"), ("overlap", 1),
            ("object-size", -1), ("object-size", 10**9), ("density-ratio", 0), ("density-ratio", "1e308"),
            ("photons", -1), ("photons", "nan"), ("photons", "1e308"), ("position-error", "inf"),
            ("position-error", "1e30"), ("position-error", 10**9), ("background", "1e308"), ("background", -1),
            ("tilt", "nan 0"), ("tilt", "1 1"), ("focus-distance", 0), ("seed", -1), ("seed", 10**30),
            ("modes", 9999), ("views", "many"), ("compression", "zip"), ("kind", "''"),
        )),
        *(f"stream r.yaml tcp://127.0.0.1:* --{name} {value}" for name, value in (
            ("rate", 0), ("rate", "nan"), ("rate", "inf"), ("protocol", "http"), ("positions-to", "yx.txt"),
        )),
        "stream r.yaml nowhere", "stream r.yaml tcp://127.0.0.1:* --protocol dectris --positions-to no/yx.txt",
        *(f"plan r.yaml --{name} {value}" for name, value in (
            ("ranks", 0), ("ranks", "''"), ("ranks", 10**9), ("ranks", "1,,2"), ("stage", 0), ("stage", -1),
            ("stage", 10**30), ("rate", "nan"), ("link", "0GB/s"), ("latency", "''"), ("device-memory", "0GB"),
            ("device-memory", "nanGB"), ("device-memory", "1e400GB"), ("device-memory", "''"),
            ("device-memory", "infGB"), ("device", "tpu"),
        )),
        *(f"orient r.yaml --{name} {value}" for name, value in (
            ("views", 0), ("views", -1), ("epochs", 0), ("epochs", 10**30), ("crop", 0), ("crop", -1),
            ("workers", 0), ("workers", 10**9), ("rotation-step", "nan"), ("c10", "''"), ("c10", "nan"), ("phase", "x"),
        )),
        *(f"{command} --ranks {value}" for command in ("run r.yaml", "doctor", "demo", "scaling r.yaml", "bench r.yaml")
          for value in (0, -1, 10**9, 10**30)),
        *(f"launch --ranks {value} r.yaml" for value in (0, -1, 10**9)),
        *(f"run r.yaml --{name} {value}" for name, value in (
            ("batch-timeout", 0), ("batch-timeout", "nan"), ("batch-timeout", "inf"), ("max-restarts", -1),
            ("memory-budget", 0), ("memory-budget", "''"), ("memory-budget", "nanGB"), ("device", "''"),
        )),
        *(f"bench --{name} {value}" for name, value in (
            ("epochs", 0), ("views", -1), ("modes", 0), ("modes", "''"), ("batches", "1,,2"), ("windows", -1),
            ("threads", 0), ("engines", "''"), ("objects", 0), ("precision", "half"), ("epochs", 10**30),
        )),
        *(f"batch r.yaml --out o --{name} {value}" for name, value in (
            ("jobs", 0), ("jobs", -1), ("jobs", 10**9), ("ranks", 0), ("ranks", 10**9), ("device", "tpu"),
        )),
        *(f"calibrate r.yaml --{name} {value}" for name, value in (
            ("energy", "nan"), ("energy", "80nm"), ("energy", "''"), ("energy", "8kev"), ("semiangle", "20nm"),
            ("step", "inf"), ("step", "1e400nm"), ("lattice", "4"), ("lattice", "4mrad"), ("lattice", "nan"),
        )),
        *(f"simulate new.cxi --{name} {value}" for name, value in (("energy", "8kg"), ("pixel", "20mrad"))),
        *(f"tune r.yaml --{name} {value}" for name, value in (("trials", 0), ("workers", 0), ("trials", 10**30))),
        *(f"slurm r.yaml --{name} {value}" for name, value in (
            ("nodes", 0), ("gpus-per-node", -1), ("ranks-per-node", 0), ("cpus-per-task", 0), ("time", "''"),
        )),
        *(f"live r.yaml --from s.h5 --out o --{name} {value}" for name, value in (
            ("timeout", 0), ("timeout", "nan"), ("frame-start", "inf"), ("frame-period", 0), ("frame-period", "nan"),
            ("exposure", -1), ("exposure", "inf"), ("uses", 0),
        )),
        "doctor --timeout nan", "doctor --timeout 0", "scaling r.yaml --trials 0", "scaling r.yaml --threads 0",
        "bench r.yaml --ranks 1 --trials 0", "bench r.yaml --ranks ''",
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(run: Run, line: str) -> None:
    status, said = run(*["" if word == "''" else word for word in line.split()])
    assert status == 2 and "unexpected" not in said and "Traceback" not in said, said
    assert said.startswith(("ptymesh: ", "Error: "))


@pytest.mark.parametrize("command", ["tune", "orient", "scaling", "slurm", "view", "run", "demo"])
def test_an_empty_name_is_no_folder(run: Run, command: str) -> None:
    status, said = run(command, *["r.yaml" if one == "FILE" else one for one in PATHS[command][0]], "--out", "")
    assert status == 2 and "--out is empty; give the name of a folder." in said


@pytest.mark.parametrize("given", ["output: {dir: ''}", "output: {dir: }", "scratch: ''"])
def test_an_empty_folder_in_a_recipe(run: Run, given: str) -> None:
    with Path("r.yaml").open("a") as file:
        file.write(given)
    before = sorted(os.listdir())
    status, said = run("run", "r.yaml")
    assert status == 2 and "empty" in said and sorted(os.listdir()) == before


def test_a_checkpoint_that_is_a_link_is_left_alone(run: Run) -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/mine").write_text("kept")
    Path("out").mkdir()
    Path("out/checkpoint").symlink_to("../elsewhere")
    status, said = run("run", "r.yaml", "--force")
    assert status == 2 and "out/checkpoint is a link" in said
    assert Path("out/checkpoint").is_symlink() and os.listdir("elsewhere") == ["mine"]
    assert os.listdir("out") == ["checkpoint"]


def test_only_what_a_run_writes_must_be_a_file(tmp_path: Path) -> None:
    for name in ("notes.png", "mine.tiff"):
        (tmp_path / name).symlink_to("nowhere")
    refuse_to_overwrite(tmp_path, force=True)
    for name in ("object.png", "probe_phase.tiff", "started.yaml.new"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(BadInput, match="is a FIFO"):
            refuse_to_overwrite(tmp_path, force=True)
        (tmp_path / name).unlink()
