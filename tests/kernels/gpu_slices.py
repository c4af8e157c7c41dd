"""The slices of `make gpu-check`: what each tells, how long it may take, and the processes that it starts.

In the order in which they matter: a report that ends early has said most.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_processes import Ended, Processes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Seconds by which a part of a check may be longer on the stand-in.
SLOWER = 10
#: What a check says: passed, failed, not possible here, or left (the time was over); and why.
Verdict = tuple[str, str]
PASSED, FAILED, IMPOSSIBLE, LEFT = "passed", "failed", "not possible here", "left"
RECIPE = """
data: {path: scan.cxi}
stages: [{engine: lsqml, epochs: %d, batch: 60, positions: true}]
output: {figures: false, checkpoint_every: 1}
"""


class CutOff(Exception):
    """The time for everything was over while a check ran."""


@dataclass(frozen=True)
class Site:
    """Where checks are done, and when it is to be over.

    Attributes:
        kind: "cuda" or "stand-in".
        gpus: number of GPUs.
        out: folder of the report.
        star: the Siemens star, or None.
        peers: folder with wheels of the peers, or an environment that has them, or None.
        scratch: folder for what is not kept.
        until: moment of time.monotonic() when all is to be over.
        processes: those that it started.
        check: name of the check that is done.
        limit_s: seconds that it may take.
    """

    kind: str
    gpus: int
    out: Path
    star: Path | None
    peers: Path | None
    scratch: Path
    until: float
    processes: Processes = field(default_factory=Processes)
    check: str = ""
    limit_s: float = 0.0

    @property
    def is_real(self) -> bool:
        return self.kind != "stand-in"

    @property
    def seconds_left(self) -> float:
        """Seconds that the check may take, if it begins now."""
        return min(self.limit_s, self.until - time.monotonic())

    @property
    def environment(self) -> dict[str, str]:
        folders = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        more = {
            "PTYMESH_TRITON_DEVICE": "cuda" if self.is_real else "cpu",
            "PTYMESH_FAILURES": str(self.failures),
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        }
        if not self.is_real:
            more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **more}

    @property
    def failures(self) -> Path:
        """Folder for what tells of the check's failures."""
        return self.out / "failures" / (self.check or "check")

    @property
    def log(self) -> Path:
        """File with all that the check's processes say."""
        return self.out / "logs" / f"{self.check or 'check'}.txt"

    def run(self, command: Sequence[str], limit_s: float | None = None, part: str = "", **more: str) -> Ended:
        """Run a command within the check's limit; raises CutOff where the time for everything ends it.

        Args:
            command: program and arguments; "python" is this Python.
            limit_s: seconds, if less than the check may take.
            part: of the name of its log, where several run at once.
            more: variables of the environment.
        """
        command = [sys.executable if word == "python" else word for word in command]
        log = self.log.with_stem(f"{self.log.stem}-{part}") if part else self.log
        log.parent.mkdir(parents=True, exist_ok=True)
        limit_s = min(limit_s or self.limit_s, self.limit_s)
        ended = self.processes.run(command, log, {**self.environment, **more}, self.scratch, limit_s, self.until)
        if ended.is_cut:
            raise CutOff
        return ended


@dataclass(frozen=True)
class Check:
    """One slice.

    Attributes:
        name: one word, by which it is chosen.
        says: what it tells.
        limit_s: seconds on a GPU after which its processes are killed.
        act: does it.
        is_alone: nothing else may run beside it, as it measures time.
    """

    name: str
    says: str
    limit_s: float
    act: Callable[[Site], Verdict]
    is_alone: bool = False

    def limit_on(self, kind: str) -> float:
        """Return its limit in seconds on a GPU ("cuda"), or on the stand-in, which is slower."""
        return self.limit_s * (SLOWER if kind == "stand-in" else 1)

    def perform(self, site: Site) -> Verdict:
        """Do it; whatever is raised is a verdict as well."""
        site = replace(site, check=self.name, limit_s=self.limit_on(site.kind))
        try:
            return self.act(site)
        except CutOff:
            return LEFT, "the time was over while it ran"
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"


def verdict_of(ended: Ended, limit_s: float) -> Verdict:
    """Return what a process's end says: its last line, passed if its status is 0."""
    if ended.status is None:
        return FAILED, f"did not end within {limit_s:.3g} s; where it was is at the end of its log"
    lines = ended.said.strip().splitlines() or [""]
    return (PASSED if ended.status == 0 else FAILED), lines[-1][:300]


def ask(name: str, parts: int = 1) -> Callable[[Site], Verdict]:
    """Return a check of gpu_checks.py, whose engines are dealt to so many processes on a GPU."""

    def act(site: Site) -> Verdict:
        count = parts if site.is_real else 1

        def ask_part(number: int) -> Verdict:
            command = ["python", str(HERE / "gpu_checks.py"), name, site.kind, f"{number}/{count}"]
            verdict, last = verdict_of(site.run(command, part=str(number) if count > 1 else ""), site.limit_s)
            said, _, why = last.partition(" ")
            return (said, why) if verdict == PASSED and said in (PASSED, FAILED) else (FAILED, last)

        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(ask_part, range(count)))
        worst = FAILED if any(verdict == FAILED for verdict, _ in found) else PASSED
        return worst, "; ".join(why for verdict, why in found if verdict == worst)[:1000]

    return act


def run_tests(site: Site, *words: str) -> Verdict:
    """Run tests of kernels in processes that compile nothing for the CPU, several at once on a GPU."""
    command = ["python", "-m", "pytest", "-c", str(HERE / "gpu_check.ini"), "--rootdir", str(HERE), "-rfE"]
    command += ["-p", "no:cacheprovider", "-p", "gpu_failures", *words]
    if site.is_real and find_spec("xdist"):
        command += ["-n", str(max(1, min(4, (os.cpu_count() or 1) // 4)))]
    ended = site.run(command, PTYMESH_KERNELS="torch")
    verdict, last = verdict_of(ended, site.limit_s)
    failed = [line for line in ended.said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return verdict, "; ".join([last, *failed])[:1000]


def try_kernel(site: Site) -> Verdict:
    return run_tests(site, "-k", "one_small_kernel or is_fused or (scene_and_adjoint and none)", checks_file())


def try_kernels(site: Site) -> Verdict:
    return run_tests(site, checks_file())


def checks_file() -> str:
    return str(HERE / "triton_checks.py")


def try_large_objects(site: Site) -> Verdict:
    if not site.is_real:
        return IMPOSSIBLE, "they are of CUDA devices"
    others = [str(path) for path in (HERE / "test_triton.py", HERE.parent / "run" / "test_bench.py") if path.exists()]
    return run_tests(site, "-m", "gpu", "-k", "not test_right_on_a_gpu", *others)


def try_stand_in_ranks(site: Site) -> Verdict:
    if site.is_real:
        return IMPOSSIBLE, "torch knows one accelerator alone, and there is a real one"
    return run_tests(site, "-m", "stand_in", str(HERE / "test_ranks_of_gpus.py"))


def make_scan(site: Site) -> None:
    """Simulate the scan that runs of several ranks reconstruct, once."""
    if not (site.scratch / "scan.cxi").exists():
        command = ["python", "-m", "ptymesh", "simulate", "scan.cxi", "--views", "300", "--window", "64"]
        ended = site.run(command, PTYMESH_KERNELS="torch")
        if ended.status != 0:
            raise AssertionError(f"ptymesh simulate: {ended.said.strip()[-200:]}")


def reconstruct(site: Site, name: str, *options: str, epochs: int = 4) -> Path:
    """Run a reconstruction on the GPU and return its result."""
    (site.scratch / f"{name}.yaml").write_text(RECIPE % epochs, encoding="utf-8")
    command = ["python", "-m", "ptymesh", "run", f"{name}.yaml", "--device", "cuda", "--out", name, *options]
    ended = site.run(command, part=name)
    if ended.status != 0:
        keep_run(site, name)
        how = "did not end" if ended.status is None else f"status {ended.status}"
        raise AssertionError(f"{name}: {how}, {ended.said.strip()[-200:]}")
    return site.scratch / name / "result.h5"


def keep_run(site: Site, name: str) -> None:
    """Copy what is small in the folder of a run to the failures."""
    for path in sorted((site.scratch / name).glob("*")):
        if path.is_file() and path.stat().st_size < 8 << 20:
            folder = site.failures / name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)


def compare_runs(site: Site, runs: dict[str, tuple[str, ...]]) -> str:
    """Run reconstructions at once and return which ends with other bits than the first, and by how much; "" if none."""
    make_scan(site)
    with ThreadPoolExecutor(len(runs)) as pool:
        jobs = {name: pool.submit(reconstruct, site, name, *options) for name, options in runs.items()}
    results = {name: read_result(job.result()) for name, job in jobs.items()}
    first, others = next(iter(results.items()))[1], []
    for name, result in results.items():
        if digest(result) != digest(first):
            off = {key: float(abs(result[key] - first[key]).max()) for key in first}
            others.append(f"{name} ({', '.join(f'{key} {value:.1e}' for key, value in off.items())})")
            keep_run(site, name)
    if others:
        keep_run(site, next(iter(results)))
    return ", ".join(others)


def read_result(path: Path) -> dict[str, Any]:
    """Return the arrays that a run ends with."""
    import h5py

    with h5py.File(path) as file:
        return {key: file[key][()] for key in ("object", "probe", "positions_px")}


def digest(arrays: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()


def share_gpu(site: Site) -> Verdict:
    if not site.is_real:
        return IMPOSSIBLE, "the stand-in lives within one process"
    two = ("--ranks", "2", "--backend", "gloo", "--set", "seed=0", "--layout")
    runs = {"one": ("--ranks", "1"), "replicated": (*two, "replicated"), "tiled": (*two, "tiled")}
    other = compare_runs(site, runs)
    return (FAILED, f"other bits than one rank: {other}") if other else (PASSED, "lsqml with positions")


def use_all_gpus(site: Site) -> Verdict:
    if site.gpus < 2:
        return IMPOSSIBLE, f"there is {site.gpus} GPU, and NCCL needs one for each rank"
    each = ("--ranks", str(site.gpus), "--layout")
    runs = {"alone": ("--ranks", "1"), "nccl-replicated": (*each, "replicated"), "nccl-tiled": (*each, "tiled")}
    other = compare_runs(site, runs)
    said = f"{site.gpus} ranks"
    return (FAILED, f"{said}, other bits than one: {other}") if other else (PASSED, f"{said}, both layouts")


def kill_a_rank(site: Site) -> Verdict:
    if site.gpus < 2:
        return IMPOSSIBLE, f"there is {site.gpus} GPU, and NCCL needs one for each rank"
    import psutil

    make_scan(site)
    (site.scratch / "killed.yaml").write_text(RECIPE % 100000, encoding="utf-8")
    command = [sys.executable, "-m", "ptymesh", "run", "killed.yaml", "--ranks", "2", "--device", "cuda"]
    end = time.monotonic() + site.seconds_left
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(site.run, [*command, "--out", "killed"], site.seconds_left)
        rank = None
        while rank is None and not job.done() and time.monotonic() < end:
            time.sleep(0.2)
            if (site.scratch / "killed" / "checkpoint").exists():
                rank = next((p for p in psutil.Process().children(recursive=True) if is_rank_one(p)), None)
        if rank is None:
            return FAILED, f"rank 1 was not there to be killed after its first checkpoint; {job.result().said[-200:]}"
        rank.send_signal(signal.SIGKILL)
        began = time.monotonic()
        ended = job.result()
    said = ended.said.strip()
    if ended.status is None:
        return FAILED, "the others were still there when the time was over"
    named = ended.status != 0 and "Rank 1" in said
    return (PASSED if named else FAILED), f"status {ended.status} after {time.monotonic() - began:.0f} s: {said[-150:]}"


def is_rank_one(process: Any) -> bool:
    """Return True if a process is rank 1 of this check's run."""
    import psutil

    try:
        return process.environ().get("RANK") == "1" and "killed" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def sanitize(site: Site) -> Verdict:
    tool = shutil.which("compute-sanitizer")
    if not site.is_real or tool is None:
        return IMPOSSIBLE, "compute-sanitizer is not installed" if tool is None else "it is of CUDA devices"
    command = [tool, "--error-exitcode", "9", "--target-processes", "all", "python", "-m", "pytest"]
    command += ["-c", str(HERE / "gpu_check.ini"), "--rootdir", str(HERE), "-p", "no:cacheprovider", checks_file()]
    command += ["-k", "test_tiles_and_parts or test_detector"]
    ended = site.run(command, PYTORCH_NO_CUDA_MEMORY_CACHING="1", PTYMESH_KERNELS="torch")
    return verdict_of(ended, site.limit_s)


def measure_speed(site: Site) -> Verdict:
    script = ROOT / "benchmarks" / "gpu.py"
    if not script.exists():
        return IMPOSSIBLE, "benchmarks/gpu.py is not in this kit"
    folder = site.out / "speed"
    folder.mkdir(exist_ok=True)
    peers = site.peers if site.is_real else None
    if peers and is_wheels(peers):
        peers = install_peers(site)
    # so that it ends by itself, with what it has measured, where less time is left than it may take
    seconds = max(10.0, site.seconds_left - 15.0)
    command = ["python", str(script), "--out", str(folder), "--seconds", f"{seconds if site.is_real else 60:.0f}"]
    command += [] if site.is_real else ["--stand-in"]
    verdict, last = verdict_of(site.run([*command, *(["--peers", str(peers)] if peers else [])]), site.limit_s)
    return verdict, f"{folder.name}/; its last row: {last}" if verdict == PASSED else last


def measure_roofline(site: Site) -> Verdict:
    if not site.is_real:
        return IMPOSSIBLE, "the stand-in's time says nothing"
    out = site.out / "bench.json"
    command = ["python", str(ROOT / "benchmarks/floor.py"), "--device", "cuda", "--views", "2048", "--epochs", "3"]
    command += ["--batches", "16,64,256,1024", "--modes", "1,4", "--out", str(out), "--busy-ok"]
    verdict, last = verdict_of(site.run(command), site.limit_s)
    return verdict, f"{out.name}, table in logs/{site.log.name}" if verdict == PASSED else last


def compare_peers(site: Site) -> Verdict:
    if not site.is_real:
        return IMPOSSIBLE, "the stand-in's time says nothing"
    if not site.star:
        return IMPOSSIBLE, "no Siemens star: give --star path/to/siemens-star-small.npz.bz2"
    if not site.peers:
        return IMPOSSIBLE, "no peers: give --peers with the folder of their wheels, or an environment that has them"
    out = site.out / "peers.json"
    command = ["python", str(ROOT / "benchmarks/peers/compare.py"), str(site.star), "--device", "cuda"]
    command += ["--out", str(out), "--busy-ok", "--batch", "256", "--turns", "3"]
    if is_wheels(site.peers):
        command += ["--site", str(install_peers(site)), "--peers", "ptychi", "ptyrad"]
    else:
        command += ["--venv", str(site.peers)]
    verdict, last = verdict_of(site.run(command), site.limit_s)
    return verdict, out.name if verdict == PASSED else last


def is_wheels(peers: Path) -> bool:
    """Return True if the folder holds wheels of peers, which are to be installed, and no environment."""
    return (peers / "wheels").is_dir()


def install_peers(site: Site) -> Path:
    """Install the peers' wheels into a folder of their own beside these, once, and return it."""
    assert site.peers is not None
    folder = site.peers / "site"
    if not folder.exists():
        wheels = [str(path) for path in sorted((site.peers / "wheels").glob("*.whl"))]
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = ["python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        ended = site.run([*command, "--target", str(part), *wheels])
        if ended.status != 0:
            raise subprocess.SubprocessError(f"the peers cannot be installed: {ended.said.strip()[-200:]}")
        part.rename(folder)
    return folder


CHECKS = (
    Check("kernel", "a few kernels against their references", 75, try_kernel),
    Check("engine", "one engine against the reference", 60, ask("engine")),
    Check("kernels", "every kernel against its reference", 180, try_kernels),
    Check("torch-engines", "every engine by torch's operations on the GPU", 90, ask("torch_engines", 2)),
    Check("engines", "every engine against the reference", 150, ask("engines", 3)),
    Check("resume", "every engine, resumed", 120, ask("resumed", 2)),
    Check("bits", "the same bits twice, in chunks, as graphs, in tiles", 120, ask("bits", 2)),
    Check("gloo", "two gloo ranks on one GPU, in both layouts, and one rank: the same bits", 120, share_gpu),
    Check("fetched", "patterns from host and disk", 60, ask("fetched")),
    Check("waits", "no batch waits for the device", 90, ask("waits", 2)),
    Check("graphs", "sweeps are captured", 60, ask("graphs")),
    Check("transforms", "sums and transforms of few and many", 60, ask("transforms")),
    Check("nccl", "one rank for each GPU, in both layouts, and one rank: the same bits", 120, use_all_gpus),
    Check("killed-rank", "a rank that is killed ends the others, and is named", 120, kill_a_rank),
    Check("stand-in-ranks", "two ranks joined by a group that behaves as NCCL", 60, try_stand_in_ranks),
    Check("speed", "views per second beside the card's copy rate", 150, measure_speed, is_alone=True),
    Check("roofline", "ptymesh bench, with the roofline", 90, measure_roofline, is_alone=True),
    Check("peers", "peers on the Siemens star, in turns", 150, compare_peers, is_alone=True),
    Check("marked", "tests marked gpu: CPU and GPU, graphs, objects beyond 2^31 pixels", 150, try_large_objects),
    Check("sanitizer", "kernels under compute-sanitizer: accesses beyond their arrays", 120, sanitize),
)
