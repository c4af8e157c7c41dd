"""Modules that lie in the working folder, named as libraries, are not imported by processes that commands start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from ptymesh.distributed import processes
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

SOURCE = Path(processes.__file__).parents[1]
#: Of libraries, and of Python itself.
NAMES = ("numpy", "torch", "optuna", "numba", "h5py", "yaml", "matplotlib", "psutil", "runpy", "json", "socket")
MODULE = "open('imported', 'a').write(__name__ + ' ')\n"

#: Commands that start processes, by what they start.
COMMANDS = {
    "ranks": ["run", "r.yaml", "-n", "2"],
    "figures": ["run", "r.yaml", "--out", "figures"],
    "program": ["launch", "-n", "2", "program.py"],
    "workers": ["tune", "tune.yaml", "--workers", "2", "--device", "cpu"],
    "trials on ranks": ["tune", "ranks.yaml", "--device", "cpu"],
    "hang test": ["doctor", "--ranks", "2"],
    "scaling": ["scaling", "r.yaml", "--ranks", "1,2", "--trials", "1"],
    "orientation": ["orient", "r.yaml", "--epochs", "1", "--workers", "2", "--device", "cpu"],
    "kernels": ["warm"],
}


def ran(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ptymesh WORDS` in a folder, as its program runs it: without the working folder in sys.path."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = processes.python_command("-m", "ptymesh", *words)
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a scan, recipes, a program, and modules that tell that they were imported."""
    made = tmp_path_factory.mktemp("working")
    write(checked(kind="xray", views=30, window=32, seed=3), made / "scan.cxi")
    recipe = {"data": {"path": "scan.cxi"}, "stages": [{"engine": "rpie", "epochs": 2, "batch": 15}]}
    tune = {"recipe": recipe, "space": {"stages.0.gamma_object": {"low": 0.1, "high": 2.0}}, "trials": 2}
    (made / "r.yaml").write_text(yaml.safe_dump(recipe))
    (made / "tune.yaml").write_text(yaml.safe_dump({**tune, "output": {"dir": "study"}}))
    (made / "ranks.yaml").write_text(yaml.safe_dump({**tune, "ranks_per_trial": 2, "output": {"dir": "study2"}}))
    programs = made / "programs"
    programs.mkdir()
    (programs / "own.py").write_text("THERE = True\n")
    (programs / "program.py").write_text(
        "import os, sys\nimport numpy, own\nassert own.THERE\n"
        "assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))\n"
        "print(os.environ.get('PYTHONPATH'))\n"
    )
    for name in NAMES:
        (made / f"{name}.py").write_text(MODULE)
    return made


def test_one_way_to_start_a_process() -> None:
    """A command line of Python is made in one place, which keeps the working folder out."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path != SOURCE / "distributed" / "processes.py":
            assert "[sys.executable" not in text.replace('[sys.executable, "-P"', ""), path
            assert "create_subprocess" not in text and "os.spawn" not in text and "os.exec" not in text, path


@pytest.mark.long
def test_a_program_on_ranks(folder: Path) -> None:
    """What a user's program imports lies beside it; its environment is the user's."""
    given = str(SOURCE.parent)
    done = ran(folder, "launch", "-n", "2", "programs/program.py", PYTHONPATH=given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == given and not (folder / "imported").exists()


@pytest.mark.parametrize("started", COMMANDS)
@pytest.mark.long
def test_commands(folder: Path, started: str) -> None:
    words = [word.replace("program.py", "programs/program.py") for word in COMMANDS[started]]
    done = ran(folder, *words)
    assert done.returncode == 0, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def test_machine_code_is_not_taken_from_the_working_folder(tmp_path: Path) -> None:
    """Compiled functions are pickles, and numba would read in the working folder where they lie."""
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: evil\n")
    program = (
        "import sys; sys.argv = ['ptymesh', '--version']\n"
        "from ptymesh.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "from ptymesh.kernels.cpu import compiling\n"
        "print([str(place) for place in compiling.places() if 'evil' in str(place)])\n"
    )
    done = subprocess.run(
        processes.python_command("-c", program), cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
