"""Odd names, streams and surroundings: one sentence and status 2, or the work done."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.cli import main as module
from ptymesh.cli import streams
from ptymesh.io.prepare.checks import refuse_featureless
from ptymesh.measurement import ArraySource
from ptymesh.paths import usable
from ptymesh.printable import printable
from ptymesh.recipe.magnitudes import refuse_spacing
from ptymesh.run import surroundings
from ptymesh.run_folder.terminal import Terminal
from toy import make

STAGE = {"engine": "rpie", "epochs": 2, "batch": 3}


def recon() -> pm.Reconstruction:
    return pm.Reconstruction(make(views=9, window=(16, 16)).measurement)


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(act: Any) -> None:
    with pytest.raises(pm.BadInput, match="cannot be copied or pickled"):
        act(recon())


def test_two_calls_of_run_do_not_take_turns() -> None:
    one = recon()
    first = one.run(STAGE)
    next(first)
    for _ in one.run(STAGE):
        pass
    with pytest.raises(pm.BadInput, match="Another call of run has begun"):
        next(first)
    assert one.state.done_epochs == 3


def test_modes_of_torch() -> None:
    scan = make(views=9, window=(16, 16)).measurement
    with torch.inference_mode(), pytest.raises(pm.BadInput, match="inference_mode is on"):
        pm.Reconstruction(scan)
    with torch.device("meta"), pytest.raises(pm.BadInput, match="default device is meta"):
        pm.Reconstruction(scan)


def forked(pipe: Any) -> None:
    try:
        surroundings.refuse_surroundings()
        pipe.send("not refused")
    except pm.PtymeshError as error:
        pipe.send(str(error))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_after_a_reconstruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a process with one thread may do."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    recon()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=forked, args=(theirs,))
    process.start()
    assert ours.poll(30) and ours.recv().startswith("This process was forked from one that had a Reconstruction")
    process.join()


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (np.zeros((4, 8, 8), np.uint16), "have no counts on the detector's good pixels"),
        (np.full((4, 8, 8), 5, np.uint16), "have the same count on every pixel"),
        (np.repeat(np.arange(64, dtype=np.uint16).reshape(1, 8, 8), 4, 0), "are one and the same"),
    ],
    ids=["zeros", "constant", "identical"],
)
def test_patterns_of_no_scan(patterns: np.ndarray, said: str) -> None:
    scan = make(views=4, window=(8, 8)).measurement
    refuse_featureless(scan)
    with pytest.raises(pm.BadInput, match=said):
        refuse_featureless(pm.Measurement(ArraySource(patterns), scan.positions, scan.geometry, scan.mask))


def test_spacings_that_cannot_be_meant() -> None:
    geometry = pm.Geometry((32, 32), wavelength_m=1.55e-10, object_pixel_m=(2e-8, 2e-8))  # crossed within 83 um
    refuse_spacing(geometry, 1e-5)
    for metres, said in ((1.0, "light leaves the window"), (1e-3, "light leaves"), (1e-12, "nothing tells")):
        with pytest.raises(pm.BadInput, match=said):
            refuse_spacing(geometry, metres)
    refuse_spacing(pm.Geometry((32, 32)), 1.0)  # in pixels alone nothing is known


def test_names_do_not_command_the_terminal(tmp_path: Path) -> None:
    assert printable("a\x1b[2Jb\tc\n\u202e\udcff") == "a\\x1b[2Jb\tc\n\\u202e\\udcff"
    raw = io.BytesIO()
    stream = streams.Escaping(raw, encoding="utf-8")
    print("name\x1b[31m", file=stream, flush=True)
    assert raw.getvalue() == b"name\\x1b[31m\n"
    stream.styled.write("\x1b[1m")
    stream.flush()
    assert raw.getvalue().endswith(b"\x1b[1m")
    shown = io.StringIO()
    Terminal(shown).out("name\x1b[31m")
    assert shown.getvalue() == "name\\x1b[31m\n"


def test_paths_that_are_no_text() -> None:
    with pytest.raises(pm.BadInput, match="no UTF-8"):
        usable(os.fsdecode(b"x\xff"), "The path")


def test_a_working_folder_that_is_gone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "doctor"])
    monkeypatch.setattr(module.os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError(2, "gone")))
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 2 and "The working folder is gone" in capfd.readouterr().err


@pytest.mark.long
def test_a_backend_of_matplotlib_that_is_none(tmp_path: Path) -> None:
    """Figures go to files alone, so that no backend is needed."""
    recon().result().save(tmp_path / "r.h5")
    words = [sys.executable, "-P", "-m", "ptymesh", "view", "r.h5", "--out", "shown"]
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "nonsense" not in done.stderr, done.stderr
    assert (tmp_path / "shown" / "r-overview.png").exists()


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform == "win32", reason="descriptors")
@pytest.mark.parametrize("closed", ["<&- >&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_stop_a_run(closed: str, tmp_path: Path) -> None:
    """Else the pipe of signals takes their numbers, and what is read or printed there is taken for a signal."""
    (tmp_path / "r.yaml").write_text("data: {path: gone.cxi}\n")
    program = f'exec "$0" -P -m ptymesh run r.yaml {closed}'
    done = subprocess.run(["sh", "-c", program, sys.executable], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, (done.returncode, done.stderr)
