"""All that a machine with a GPU can tell, in ten minutes: `make gpu-check`, or

    python tests/kernels/gpu_check.py --out DIR [--star STAR.npz.bz2] [--only A,B]
    python tests/kernels/gpu_check.py --out DIR --stand-in      # no GPU: the pretended device, Triton's interpreter

Every check has a process and a time of its own, so that one that brings the device down, or hangs, is a line in the
report (DIR/report.md) like any other: passed, failed, or not possible here, with the reason. Ends with 0 where none has
failed, with 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NO_GPU = (
    "gpu-check: this Python sees no GPU; run it on a machine with one, with a torch that is built for it "
    "(`make gpu-check BIN=DIR` takes the environment whose python is in DIR)."
)
RECIPE = """
data: {path: scan.cxi}
stages: [{engine: lsqml, epochs: %d, batch: 60, positions: true}]
output: {figures: false, checkpoint_every: 1}
"""


@dataclass
class Line:
    """Of the report."""

    status: str
    check: str
    said: str
    seconds: float


@dataclass(frozen=True)
class Here:
    """The machine, the folder of the report, what was given, and when all is to be over (time.monotonic)."""

    kind: str
    gpus: int
    gpu: str
    out: Path
    star: str | None
    scratch: Path
    until: float

    @property
    def slower(self) -> float:
        """How much longer things may take than on a GPU."""
        return 10 if self.kind == "stand-in" else 1

    @property
    def environment(self) -> dict[str, str]:
        stand_in = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if self.kind == "stand-in" else {}
        device = "cpu" if stand_in else "cuda"
        return {**os.environ, **stand_in, "PTYMESH_TRITON_DEVICE": device}


Found = tuple[str, str]


def _run(here: Here, command: list[str], limit_s: float, **given: str) -> tuple[int | None, str]:
    """Status (None: it did not end in time) and what a command said, of which the log keeps all."""
    environment = {**here.environment, **given}
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=here.scratch,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    status: int | None = None
    try:
        said, _ = process.communicate(timeout=max(1.0, min(limit_s, here.until - time.monotonic())))
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    with (here.out / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n{said}\n[{status}]\n\n")
    return status, said


def _ended(status: int | None, said: str, limit_s: float) -> Found:
    if status is None:
        return "failed", f"did not end within {limit_s:.3g} s, or what was left of the time"
    lines = said.strip().splitlines() or [""]
    return ("passed" if status == 0 else "failed"), lines[-1][:300]


def _own(name: str, limit_s: float) -> Callable[[Here], Found]:
    """A check of gpu_checks.py."""

    def check(here: Here) -> Found:
        most_s = limit_s * here.slower
        status, said = _run(here, [sys.executable, str(HERE / "gpu_checks.py"), name, here.kind], most_s)
        verdict, last = _ended(status, said, most_s)
        kind, _, why = last.partition(" ")
        return (kind, why) if verdict == "passed" and kind in ("passed", "failed") else ("failed", last)

    return check


def _pytest(here: Here, files: list[str], limit_s: float) -> Found:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files]
    most_s = limit_s * here.slower
    return _ended(*_run(here, command, most_s, PTYMESH_KERNELS="torch"), most_s)


def kernels(here: Here) -> Found:
    """Every kernel against its reference in torch."""
    return _pytest(here, ["-m", "", str(HERE / "triton_checks.py")], 240)


def marked(here: Here) -> Found:
    """The tests that are marked `gpu`."""
    if here.kind == "stand-in":
        return "not possible here", "they are of CUDA devices"
    return _pytest(here, ["-m", "gpu", str(ROOT / "tests")], 240)


def standing_in(here: Here) -> Found:
    """Two ranks joined by a group that behaves as NCCL."""
    if here.kind != "stand-in":
        return "not possible here", "torch knows one accelerator alone, and there is a real one"
    return _pytest(here, ["-m", "stand_in", str(HERE / "test_ranks_of_gpus.py")], 240)


def _scan(here: Here) -> None:
    if not (here.scratch / "scan.cxi").exists():
        status, said = _run(
            here, [sys.executable, "-m", "ptymesh", "simulate", "scan.cxi", "--views", "300", "--window", "64"], 120
        )
        if status != 0:
            raise AssertionError(f"ptymesh simulate: {said.strip()[-200:]}")


def _reconstruct(here: Here, name: str, *options: str, epochs: int = 4) -> str:
    """A digest of the object and the positions that a run ends with."""
    _scan(here)
    (here.scratch / f"{name}.yaml").write_text(RECIPE % epochs, encoding="utf-8")
    command = [sys.executable, "-m", "ptymesh", "run", f"{name}.yaml", "--device", "cuda", "--out", name, *options]
    status, said = _run(here, command, 120)
    if status != 0:
        raise AssertionError(f"{name}: status {status}, {said.strip()[-200:]}")
    import h5py

    with h5py.File(here.scratch / name / "result.h5") as file:
        return hashlib.sha256(
            b"".join(file[key][()].tobytes() for key in ("object", "probe", "positions_px"))
        ).hexdigest()


def shared_gpu(here: Here) -> Found:
    """Two gloo ranks on one GPU, in both layouts, and one rank: the same bits."""
    if here.kind == "stand-in":
        return "not possible here", "the stand-in lives within one process"
    digests = {"one": _reconstruct(here, "one", "--ranks", "1")}
    for layout in ("replicated", "tiled"):
        digests[layout] = _reconstruct(
            here, f"gloo-{layout}", "--ranks", "2", "--backend", "gloo", "--layout", layout, "--set", "seed=0"
        )
    other = [name for name, found in digests.items() if found != digests["one"]]
    return ("failed", f"other bits: {', '.join(other)}") if other else ("passed", "lsqml with positions")


def several_gpus(here: Here) -> Found:
    """NCCL ranks, one for each GPU, in both layouts, and one rank: the same bits."""
    if here.gpus < 2:
        return "not possible here", f"there is {here.gpus} GPU, and NCCL needs one for each rank"
    one = _reconstruct(here, "single", "--ranks", "1")
    for layout in ("replicated", "tiled"):
        if _reconstruct(here, f"nccl-{layout}", "--ranks", str(here.gpus), "--layout", layout) != one:
            return "failed", f"{here.gpus} ranks, {layout}: other bits than one"
    return "passed", f"{here.gpus} ranks, both layouts"


def killed_rank(here: Here) -> Found:
    """A rank that is killed ends the others, and is named."""
    if here.gpus < 2:
        return "not possible here", f"there is {here.gpus} GPU, and NCCL needs one for each rank"
    import psutil

    _scan(here)
    (here.scratch / "killed.yaml").write_text(RECIPE % 100000, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ptymesh",
        "run",
        "killed.yaml",
        "--ranks",
        "2",
        "--device",
        "cuda",
        "--out",
        "killed",
    ]
    process = subprocess.Popen(
        command, cwd=here.scratch, env=here.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 90
    while not (here.scratch / "killed" / "checkpoint").exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.2)
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    ranks = [child for child in children if child.environ().get("RANK") == "1"]
    if not ranks:
        process.kill()
        return "failed", "rank 1 was not there to be killed after its first checkpoint"
    ranks[0].kill()
    began = time.monotonic()
    try:
        _, said = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        return "failed", "the others were still there 90 s later"
    named = process.returncode != 0 and "Rank 1" in said
    took = f"status {process.returncode} after {time.monotonic() - began:.0f} s"
    return ("passed" if named else "failed"), f"{took}: {said.strip().splitlines()[-1][:150] if said.strip() else ''}"


def sanitized(here: Here) -> Found:
    """Kernels under compute-sanitizer: accesses beyond their arrays."""
    tool = shutil.which("compute-sanitizer")
    if here.kind == "stand-in" or tool is None:
        return "not possible here", "compute-sanitizer is not installed" if tool is None else "it is of CUDA devices"
    test = f"{HERE / 'triton_checks.py'}"
    command = [
        tool,
        "--error-exitcode",
        "9",
        "--target-processes",
        "all",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
    ]
    command += ["-p", "no:cacheprovider", test, "-k", "test_tiles_and_parts or test_detector"]
    return _ended(*_run(here, command, 120, PYTORCH_NO_CUDA_MEMORY_CACHING="1", PTYMESH_KERNELS="torch"), 120)


def bench(here: Here) -> Found:
    """ptymesh bench, with the roofline."""
    if here.kind == "stand-in":
        return "not possible here", "the stand-in's time says nothing"
    out = here.out / "bench.json"
    command = [sys.executable, "-m", "ptymesh", "bench", "--device", "cuda", "--views", "2048", "--epochs", "3"]
    command += ["--batches", "16,64,256,1024", "--modes", "1,4", "--out", str(out), "--busy-ok"]
    status, said = _run(here, command, 150)
    verdict, last = _ended(status, said, 150)
    return verdict, f"{out.name}, table in log.txt" if verdict == "passed" else last


def peers(here: Here) -> Found:
    """Peers on the Siemens star."""
    if here.kind == "stand-in":
        return "not possible here", "the stand-in's time says nothing"
    if not here.star:
        return "not possible here", "no Siemens star: give STAR=path/to/siemens-star-small.npz.bz2"
    out = here.out / "peers.json"
    command = [sys.executable, str(ROOT / "benchmarks/peers/compare.py"), str(Path(here.star).resolve())]
    command += ["--venv", str((ROOT / ".peers").resolve()), "--device", "cuda", "--out", str(out)]
    status, said = _run(here, command, 300)
    verdict, last = _ended(status, said, 300)
    return verdict, out.name if verdict == "passed" else last


#: In the order in which they say most.
CHECKS: dict[str, Callable[[Here], Found]] = {
    "every kernel against its reference": kernels,
    "every engine against the reference": _own("engines", 240),
    "resume of every engine": _own("resumed", 240),
    "the same bits twice, in chunks, as graphs, in tiles": _own("bits", 240),
    "sums and transforms of few and many": _own("transforms", 60),
    "no batch waits": _own("waits", 120),
    "sweeps are captured": _own("graphs", 60),
    "patterns from host and disk": _own("fetched", 60),
    "two gloo ranks on one GPU": shared_gpu,
    "one rank for each GPU": several_gpus,
    "a killed rank": killed_rank,
    "two ranks of stand-ins": standing_in,
    "tests marked gpu": marked,
    "compute-sanitizer": sanitized,
    "bench with roofline": bench,
    "peers": peers,
}


def report(here: Here, lines: list[Line]) -> str:
    """As Markdown."""
    about = f"{here.gpu}, {platform.platform()}, Python {platform.python_version()}"
    rows = [f"| {line.status} | {line.check} | {line.said.replace('|', '/')} | {line.seconds:.0f} |" for line in lines]
    counts = [f"{sum(line.status == s for line in lines)} {s}" for s in ("passed", "failed", "not possible here")]
    head = ["# gpu-check", "", about, "", "| | check | | s |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", f"{', '.join(counts)}.", ""])


def _gpus() -> tuple[int, str]:
    look = (
        "import torch, triton; print(torch.cuda.device_count(), torch.cuda.get_device_name(0), "
        "'torch', torch.__version__, 'CUDA', torch.version.cuda or torch.version.hip, 'triton', triton.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    count, _, about = done.stdout.strip().partition(" ")
    return (int(count), about) if done.returncode == 0 and count.isdigit() else (0, "")


def main() -> int:
    parser = argparse.ArgumentParser(description="All that a machine with a GPU can tell, in ten minutes.")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--star", default=None, help="Siemens star, for the peers")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU, on the pretended device")
    parser.add_argument("--minutes", type=float, default=None, help="after which no check begins (10; stand-in 120)")
    parser.add_argument("--only", default="", help="words of checks, with commas")
    given = parser.parse_args()
    gpus, gpu = (0, "stand-in: no GPU, values on the host") if given.stand_in else _gpus()
    if not gpus and not given.stand_in:
        print(NO_GPU)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "log.txt").write_text("", encoding="utf-8")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        kind = "stand-in" if given.stand_in else "cuda"
        until = time.monotonic() + 60 * (given.minutes or (120 if given.stand_in else 10))
        here = Here(kind, gpus, gpu, given.out.resolve(), given.star or None, Path(scratch), until)
        for name, check in CHECKS.items():
            if given.only and not any(word in name for word in given.only.split(",")):
                continue
            began = time.monotonic()
            try:
                status, said = check(here) if began < until else ("not possible here", "the time was over")
            except Exception as error:
                status, said = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
            lines.append(Line(status, name, said, time.monotonic() - began))
            print(f"{status:18} {name}: {said} ({lines[-1].seconds:.0f} s)", flush=True)
            (here.out / "report.md").write_text(report(here, lines), encoding="utf-8")
            (here.out / "report.json").write_text(
                json.dumps([line.__dict__ for line in lines], indent=1), encoding="utf-8"
            )
    return int(any(line.status == "failed" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
