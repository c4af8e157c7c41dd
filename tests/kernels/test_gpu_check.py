"""`make gpu-check` itself: without a GPU it ends with a sentence, and whatever a check does is a line of the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gpu_check
import gpu_failures
import gpu_slices
import numpy as np
import psutil
import pytest
import torch
from gpu_check import NO_GPU
from gpu_processes import Processes
from gpu_slices import CHECKS, Check, Site, Verdict

SCRIPT = Path(gpu_check.__file__)
stand_in_only = pytest.mark.skipif(torch.cuda.is_available(), reason="torch knows one accelerator alone")


def lines_of(folder: Path) -> dict[str, dict]:
    return {line["check"]: line for line in json.loads((folder / "report.json").read_text())["checks"]}


@pytest.fixture
def without_numba(tmp_path: Path) -> dict[str, str]:
    """An environment in which numba cannot be imported, as beside a numpy that is newer than it."""
    folder = tmp_path / "refusing"
    (folder / "numba").mkdir(parents=True)
    (folder / "numba" / "__init__.py").write_text("raise ImportError('Numba needs an older NumPy')")
    paths = [str(folder), str(gpu_slices.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.forked
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, f"{NO_GPU}\n", "")
    assert not (tmp_path / "out").exists()


def test_the_checks_are_listed_in_order_with_their_limits(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--list"], capture_output=True, text=True, cwd=tmp_path)
    named = [line.split()[0] for line in done.stdout.splitlines()]
    assert named[:-1] == [check.name for check in CHECKS] and " 60 s  one engine against" in done.stdout
    matters = [
        "kernel",
        "engine",
        "engines",
        "resume",
        "bits",
        "gloo",
        "fetched",
        "waits",
        "speed",
        "roofline",
        "peers",
    ]
    places = [named.index(name) for name in matters]
    assert places == sorted(places) and not list(tmp_path.iterdir())


@pytest.mark.stand_in
@stand_in_only
def test_a_check_on_the_stand_in(tmp_path: Path, without_numba: dict[str, str]) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--stand-in", "--only", "nccl,transforms"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_numba)
    assert done.returncode == 0, done.stdout
    lines = lines_of(out)
    assert list(lines) == ["transforms", "nccl"]
    assert lines["transforms"]["said"].startswith("sums do not; transforms do for 32 x 32 complex64")
    assert lines["nccl"]["status"] == "not possible here"
    assert "NCCL needs one for each rank" in lines["nccl"]["said"]
    text = (out / "report.md").read_text()
    assert "1 passed, 0 failed, 1 not possible here, 0 left." in text and "| passed | transforms | sums" in text
    assert f"- torch: {torch.__version__}" in text and "- device: stand-in" in text


#: Why checks are not possible without a GPU, by words of the reason.
ELSEWHERE = {
    "gloo": "within one process",
    "nccl": "there is 0 GPU",
    "killed-rank": "there is 0 GPU",
    "marked": "of CUDA devices",
    "sanitizer": "not installed",
    "roofline": "says nothing",
    "peers": "says nothing",
}
if not (gpu_slices.ROOT / "benchmarks" / "gpu.py").exists():
    ELSEWHERE["speed"] = "not in this kit"


@stand_in_only
@pytest.mark.stand_in
@pytest.mark.timeout(2400)
def test_all_checks_on_the_stand_in(tmp_path: Path, without_numba: dict[str, str]) -> None:
    """Every engine in both layouts, resumed, patterns from elsewhere, and all else that needs no GPU, to the end."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install 'ptymesh[gpu]')")
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--stand-in"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_numba)
    assert done.returncode == 0, done.stdout[-6000:]
    lines = lines_of(out)
    assert list(lines) == [check.name for check in CHECKS]
    for name, line in lines.items():
        why = ELSEWHERE.get(name)
        assert line["status"] == ("not possible here" if why else "passed"), line
        assert why is None or why in line["said"] or "CUDA" in line["said"], line
        assert line["seconds"] < line["limit_s"]


def python(code: str) -> Callable[[Site], Verdict]:
    """A check that runs a program."""
    return lambda site: gpu_slices.verdict_of(site.run(["python", "-c", code]), site.limit_s)


def breaks(site: Site) -> Verdict:
    raise OSError("no such tool")


HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
def waiting_for_the_device():
    time.sleep(600)
waiting_for_the_device()
"""


def is_gone(pid: int) -> bool:
    """Return True if a process has ended, also where nobody has asked yet how it did."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs gpu-check with other checks, as on a machine with one GPU."""

    def run(checks: tuple[Check, ...], *words: str) -> int:
        for module in (gpu_check, gpu_slices):
            monkeypatch.setattr(module, "CHECKS", checks)
        monkeypatch.setattr(gpu_check, "look_at_gpus", lambda: (1, "a GPU"))
        monkeypatch.setattr(gpu_check.signal, "signal", lambda *given: None)
        monkeypatch.setattr(gpu_check.resource, "setrlimit", lambda *given: None)
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "out"), "--at-once", "2", *words])
        return gpu_check.main()

    return run


def test_what_hangs_fails_or_is_not_there_is_a_line(
    on_a_gpu: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (
        Check("hangs", "", 1.5, python(HANGS)),
        Check("fails", "", 60, python("raise ValueError('bad | bits')")),
        Check("breaks", "", 60, breaks),
        Check("nccl", "", 60, gpu_slices.use_all_gpus),
        Check("sound", "", 60, python("print('all is well')")),
    )
    assert on_a_gpu(checks) == 1
    out = tmp_path / "out"
    assert {name: (line["status"], line["said"]) for name, line in lines_of(out).items()} == {
        "hangs": ("failed", "did not end within 1.5 s; where it was is at the end of its log"),
        "fails": ("failed", "ValueError: bad | bits"),
        "breaks": ("failed", "OSError: no such tool"),
        "nccl": ("not possible here", "there is 1 GPU, and NCCL needs one for each rank"),
        "sound": ("passed", "all is well"),
    }
    log = (out / "logs" / "hangs.txt").read_text()
    assert "in waiting_for_the_device" in log, "where it hung"
    pid = int(next(line for line in log.splitlines() if line.isdigit()))
    assert is_gone(pid), "what it started, in a session of its own, is gone too"
    with tarfile.open(out / "all.tar.gz") as packed:
        assert {"out/report.md", "out/report.json", "out/logs/hangs.txt"} <= set(packed.getnames())
    report = (out / "report.md").read_text()
    assert "| failed | fails | ValueError: bad / bits |" in report
    assert "1 passed, 3 failed, 1 not possible here, 0 left. `--only failed` does again" in report
    said = capsys.readouterr().out
    assert "    ValueError: bad | bits" in said and "failed             fails: ValueError" in said

    # a second run does what failed, and keeps the other lines
    mended = tuple(
        Check(check.name, "", 60, python("print('mended')" if check.name != "sound" else "raise SystemExit(1)"))
        for check in checks
    )
    assert on_a_gpu(mended, "--only", "failed") == 0
    again = {name: (line["status"], line["said"]) for name, line in lines_of(out).items()}
    assert again["hangs"] == again["fails"] == again["breaks"] == ("passed", "mended")
    assert again["sound"] == ("passed", "all is well") and again["nccl"][0] == "not possible here"
    assert "ValueError" not in (out / "logs" / "fails.txt").read_text()
    assert on_a_gpu(mended, "--only", "fails,nonsense") == 2 and "no check nonsense" in capsys.readouterr().out


@pytest.mark.stand_in
def test_minutes_count_from_where_the_kit_started(
    on_a_gpu: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not done in time is left, what runs is cut off, and the next run does it."""
    checks = (Check("quick", "", 60, python("print(1)")), Check("slow", "", 60, python("import time; time.sleep(99)")))
    checks = (*checks, Check("last", "", 60, python("print(2)"), is_alone=True))
    monkeypatch.setenv(gpu_check.STARTED, str(time.time() - 46))  # of a minute, 14 s are left, 6 of them in reserve
    began = time.monotonic()
    assert on_a_gpu(checks, "--minutes", "1") == 75
    assert time.monotonic() - began < 16
    lines = lines_of(tmp_path / "out")
    assert [(line["status"], line["said"]) for line in lines.values()] == [
        ("passed", "1"),
        ("left", "the time was over while it ran"),
        ("left", "the time was over"),
    ]
    assert "does again what failed or was left: slow, last" in (tmp_path / "out" / "report.md").read_text()
    monkeypatch.setenv(gpu_check.STARTED, str(time.time()))
    assert on_a_gpu((*checks[:1], Check("slow", "", 60, python("print(3)")), checks[2]), "--only", "failed") == 0
    assert [line["said"] for line in lines_of(tmp_path / "out").values()] == ["1", "3", "2"]


def test_several_at_once_but_for_those_that_measure(on_a_gpu: Callable[..., int]) -> None:
    running: list[str] = []
    beside: dict[str, int] = {}

    def act(site: Site) -> Verdict:
        running.append(site.check)
        most, until = 0, time.monotonic() + (30 if site.check in ("second", "third") else 0.3)
        while time.monotonic() < until and most < 2:  # on a busy machine the other one may begin late
            most = max(most, len(running))
            time.sleep(0.05)
        beside[site.check] = most
        time.sleep(0.2)
        running.remove(site.check)
        return "passed", ""

    names = ("first", "second", "third", "measured", "fourth")
    checks = tuple(Check(name, "", 60, act, is_alone=name == "measured") for name in names)
    assert on_a_gpu(checks) == 0
    assert beside["first"] == beside["measured"] == beside["fourth"] == 1
    assert beside["second"] == 2, "the first fills Triton's caches, then two are done at once"


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
    site = Site("cuda", 1, tmp_path, None, None, tmp_path, time.monotonic() + 60, Processes(), "bits", 60)
    monkeypatch.setattr(Site, "run", lambda *given, **more: gpu_slices.Ended(0, said))
    assert gpu_slices.ask("bits")(site) == wanted


FAILING = """
import numpy as np
import torch
from dataclasses import dataclass

@dataclass
class Case:
    waves: torch.Tensor

def compare(case, wanted):
    assert torch.equal(case.waves, wanted), "other waves"

def test_waves():
    compare(Case(torch.arange(6).to(torch.complex64).reshape(2, 3)), torch.ones(2, 3, dtype=torch.complex64))

def test_the_device_is_lost():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def test_afterwards():
    raise AssertionError("was tried")
"""


@pytest.mark.stand_in
def test_a_failed_test_leaves_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(FAILING)
    ini = SCRIPT.with_name("gpu_check.ini")
    command = [sys.executable, "-m", "pytest", "-c", str(ini), "--rootdir", str(tmp_path), "-p", "gpu_failures"]
    environment = {**os.environ, gpu_failures.FOLDER: str(tmp_path / "failures"), "PYTHONPATH": str(SCRIPT.parent)}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    words = ["-p", "no:cacheprovider", str(tmp_path / "tests" / "test_it.py")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment)
    assert "2 failed, 1 skipped" in done.stdout, done.stdout
    failed = tmp_path / "failures" / "test_waves"
    (inputs,) = failed.glob("frame-*-compare.npz")
    with np.load(inputs, allow_pickle=False) as arrays:
        assert sorted(arrays) == ["case.waves", "wanted"]
        assert arrays["case.waves"][1, 2] == 5 and (arrays["wanted"] == 1).all()
    assert "AssertionError: other waves" in (failed / "traceback.txt").read_text()
    assert json.loads((failed / "versions.json").read_text())["torch"] == torch.__version__
    assert "complex64 (2, 3) on cpu" in (failed / "frames.txt").read_text()
    assert (tmp_path / "failures" / "test_the_device_is_lost").is_dir()


def test_kernels_of_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PTX of the kernel that an error names, or of all that the process has compiled."""

    kernel = SimpleNamespace(asm={"ptx": ".target sm_90", "cubin": b"code", "ttgir": "module {}"})
    jitted = SimpleNamespace(device_caches={0: ({"key": kernel}, {}, "target", "backend", None)})

    module = type(sys)("ptymesh.kernels.triton_made_up")
    jitted.__module__ = module.__name__
    module.detector, module.to_object = jitted, jitted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, said, wanted in (("one", "ptxas failed in detector (...)", 1), ("all", "other bits", 2)):
        (tmp_path / name).mkdir()
        gpu_failures.save_kernels(tmp_path / name, said)
        assert [path.read_text() for path in sorted((tmp_path / name).glob("*.ptx"))] == [".target sm_90"] * wanted
    assert (tmp_path / "one" / "detector-0.ttgir").exists()
