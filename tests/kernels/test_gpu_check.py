"""`make gpu-check` itself: without a GPU it ends with a sentence, and whatever a check does is a line of the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import pytest
import torch
from gpu_check import CHECKS, NO_GPU, Here

SCRIPT = Path(gpu_check.__file__)
stand_in_only = pytest.mark.skipif(torch.cuda.is_available(), reason="torch knows one accelerator alone")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, f"{NO_GPU}\n", "")
    assert not (tmp_path / "out").exists()


@stand_in_only
def test_a_check_on_the_stand_in(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--stand-in", "--only", "one rank for,sums and"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()
    sums, gpus = json.loads((tmp_path / "report.json").read_text())
    assert sums["status"] == "passed" and sums["said"].startswith("sums do not; transforms do for 32 x 32 complex64")
    assert gpus["status"] == "not possible here" and "NCCL needs one for each rank" in gpus["said"]
    text = (tmp_path / "report.md").read_text()
    assert "1 passed, 0 failed, 1 not possible here." in text and "| passed | sums and transforms" in text


#: Why checks are not possible without a GPU, by words of the reason.
ELSEWHERE = {
    "two gloo ranks on one GPU": "within one process",
    "one rank for each GPU": "there is 0 GPU",
    "a killed rank": "there is 0 GPU",
    "tests marked gpu": "of CUDA devices",
    "compute-sanitizer": "not installed",
    "bench with roofline": "says nothing",
    "peers": "says nothing",
}


@stand_in_only
@pytest.mark.stand_in
@pytest.mark.timeout(900)
def test_all_checks_on_the_stand_in(tmp_path: Path) -> None:
    """Every engine in both layouts, resumed, patterns from elsewhere, and all else that needs no GPU, to the end."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--stand-in"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()[-4000:]
    lines = json.loads((tmp_path / "report.json").read_text())
    assert [line["check"] for line in lines] == list(CHECKS)
    for line in lines:
        why = ELSEWHERE.get(line["check"])
        assert line["status"] == ("not possible here" if why else "passed"), line
        assert why is None or why in line["said"] or "CUDA" in line["said"], line


def here(folder: Path) -> Here:
    return Here("cuda", 1, "a GPU", folder, None, folder, time.monotonic() + 60)


def test_what_hangs_fails_or_is_not_there_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hangs(at: Here) -> tuple[str, str]:
        return gpu_check._ended(*gpu_check._run(at, [sys.executable, "-c", "while True: pass"], 0.5), 0.5)

    def fails(at: Here) -> tuple[str, str]:
        return gpu_check._ended(*gpu_check._run(at, [sys.executable, "-c", "raise ValueError('bad | bits')"], 60), 60)

    def breaks(at: Here) -> tuple[str, str]:
        raise OSError("no such tool")

    checks = {"hangs": hangs, "fails": fails, "breaks": breaks, "ranks": CHECKS["one rank for each GPU"]}
    monkeypatch.setattr(gpu_check, "CHECKS", checks)
    monkeypatch.setattr(gpu_check, "_gpus", lambda: (1, "a GPU"))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path)])
    assert gpu_check.main() == 1
    found = {
        line["check"]: (line["status"], line["said"]) for line in json.loads((tmp_path / "report.json").read_text())
    }
    assert found == {
        "hangs": ("failed", "did not end within 0.5 s, or what was left of the time"),
        "fails": ("failed", "ValueError: bad | bits"),
        "breaks": ("failed", "OSError: no such tool"),
        "ranks": ("not possible here", "there is 1 GPU, and NCCL needs one for each rank"),
    }
    assert "| failed | fails | ValueError: bad / bits |" in (tmp_path / "report.md").read_text()
    assert "0 passed, 3 failed, 1 not possible here." in (tmp_path / "report.md").read_text()
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path), "--minutes", "-1"])
    assert gpu_check.main() == 0 and (tmp_path / "report.md").read_text().count("the time was over") == 4
    assert "ValueError" not in (tmp_path / "log.txt").read_text(), "of the run before"
    assert capsys.readouterr().out.count("failed") == 3


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("noise\npassed 5 engines", ("passed", "5 engines")),
        ("failed AssertionError: other bits", ("failed", "AssertionError: other bits")),
        ("Segmentation fault", ("failed", "Segmentation fault")),
    ],
)
def test_what_a_process_says(
    said: str, wanted: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "_run", lambda *given: (0, said))
    assert gpu_check._own("bits", 1)(here(tmp_path)) == wanted
