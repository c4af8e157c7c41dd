"""Kernels compiled once for a machine, in processes that do nothing else, and read from disk by those that compute.

A process never calls what it has compiled itself, where there is a place to keep it: functions that kernels share are
joined to them anew when they are read, and then round otherwise than in the process that compiled them. Ranks of which
one had compiled would differ in last bits.

Numba judges by a kernel's own file if the kernel on disk is out of date, but kernels share other files. So the folder
is marked with a digest of all files of this package, and `forget_others` deletes kernels under another mark.

`python -m ptymesh.kernels.cpu.compiling DTYPE FOLDER NAME...` compiles the kernels of these names that no other such
process has claimed by a file in FOLDER.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.dispatcher import Dispatcher

from ptymesh import stopping
from ptymesh.distributed.processes import start_python

#: Largest number of processes. More gain nothing: the largest kernel takes two fifths of the time.
MOST = 3

#: Objects between two collections of garbage. Numba makes millions that stay; to visit them at the usual rate takes a
#: sixteenth of the compilation.
COLLECT_AT = 200_000

#: Modules with kernels; those that take longest to compile come first.
KERNEL_MODULES = tuple(
    import_module(f"ptymesh.kernels.cpu.compiled.{name}")
    for name in ("detector", "probes", "signals", "slices", "blocks", "moves", "object", "windows")
)
#: File beside the kernels on disk that says of which files they were made.
MARK = "ptymesh-kernels.sha256"

config: Any = numba.config


def kernels() -> dict[str, tuple[Dispatcher, str]]:
    """Return all kernels and the words for their arguments, by name."""
    return {
        kernel.__name__: (kernel, words) for module in KERNEL_MODULES for kernel, words in module.SIGNATURES.items()
    }


def places() -> set[Path]:
    """Return the folders where compiled kernels are kept."""
    return {Path(kernel.stats.cache_path) for kernel, _ in kernels().values() if kernel.stats.cache_path}


def is_up_to_date() -> bool:
    """Return True if the kernels on disk were compiled from these files; then they can be read while other processes
    compile."""
    now = digest()
    return all((place / MARK).is_file() and (place / MARK).read_text() == now for place in places())


def missing(dtype: str) -> list[str]:
    """Return the names of the kernels for these waves that the first run would have to compile."""
    return read(dtype) if is_up_to_date() else list(kernels())


def forget_others() -> None:
    """Delete kernels on disk that were compiled from other files than these, and mark the place."""
    for place in places():
        mark_as(place, digest())


def mark_as(place: Path, digest: str) -> None:
    """Delete the kernels of a folder unless its mark has this digest; then mark it so."""
    mark = place / MARK
    if mark.is_file() and mark.read_text() == digest:
        return
    for module in KERNEL_MODULES:
        for kept in place.glob(f"{module.__name__.rpartition('.')[2]}.*.nb[ic]"):
            kept.unlink(missing_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    mark.write_text(digest)


def digest() -> str:
    """Return the digest of all files that compiled kernels depend on."""
    found = hashlib.sha256()
    for path in (*sorted((Path(__file__).parent / "compiled").glob("*.py")), Path(__file__)):
        found.update(path.read_bytes())
    return found.hexdigest()


def read(dtype: str) -> list[str]:
    """Read kernels for waves of complex64 or complex128 from disk; return the names of those that are not there."""
    missing = []
    with event.install_listener("numba:compile", _Never()):
        for name in kernels():
            try:
                compile_one(name, dtype)
            except _NotKept:
                missing.append(name)
    return missing


def compile_apart(names: Sequence[str], dtype: str) -> None:
    """Compile these kernels in processes of their own, for `read` to find; what fails there stays uncompiled."""
    kept = [name for name in names if kernels()[name][0].stats.cache_path]
    if not (kept and sys.executable):
        return
    with tempfile.TemporaryDirectory() as claims:
        words = ("-m", "ptymesh.kernels.cpu.compiling", dtype, claims, *kept)
        count = min(config.NUMBA_DEFAULT_NUM_THREADS, MOST, len(kept))
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        processes: list[subprocess.Popen[bytes]] = []
        ended = threading.Event()

        def end() -> None:
            ended.set()
            for process in processes:
                process.kill()
            shutil.rmtree(claims, ignore_errors=True)

        with stopping.tidying(end):
            atexit.register(end)  # in case the program ends while a thread waits here (ready.start_preparing)
            try:
                for _ in range(count):
                    processes.append(start_python(*words, **quiet))
                for process in processes:
                    process.wait()
            finally:
                atexit.unregister(end)
        if ended.is_set():
            raise RuntimeError("the program has ended")


def compile_one(name: str, dtype: str) -> None:
    """Compile a kernel for waves of this type in this process, or read it from disk."""
    types = {
        "c": numba.complex64 if dtype == "complex64" else numba.complex128,
        "r": numba.float32 if dtype == "complex64" else numba.float64,
        "z": numba.complex128,
        "d": numba.float64,
        "u": numba.uint8,
        "i": numba.int64,
        "b": numba.boolean,
    }
    kernel, words = kernels()[name]
    kernel.compile(_types(iter(words.replace("(", "( ").replace(")", " )").split()), types))


def choose_threads() -> None:
    """Let numba's OpenMP share torch's threads (before_torch.py): a pool of its own would spin on the cores of the FFT.

    Where numba was built without OpenMP it takes what it has.
    """
    config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def _types(words: Iterator[str], scalars: Mapping[str, numba.types.Type]) -> tuple[numba.types.Type, ...]:
    """Return types of arguments up to the end, or of a tuple up to its bracket."""
    found: list[numba.types.Type] = []
    for word in words:
        if word == ")":
            break
        if word == "(":
            found.append(numba.types.Tuple(_types(words, scalars)))
        else:
            scalar, dimensions = scalars[word[0]], word[1:]
            found.append(numba.types.Array(scalar, int(dimensions), "C") if dimensions else scalar)
    return tuple(found)


class _NotKept(Exception):
    """A kernel is not on disk."""


class _Never(event.Listener):
    """Numba is about to compile what it has not found on disk; it may not."""

    def on_start(self, event: event.Event) -> None:
        raise _NotKept

    def on_end(self, event: event.Event) -> None:
        pass


def main(dtype: str, claims: str, names: Sequence[str]) -> None:
    """Compile kernels until all are claimed.

    Args:
        dtype: complex64 or complex128.
        claims: folder in which processes claim kernels by files.
        names: the kernels.
    """
    gc.set_threshold(COLLECT_AT)
    choose_threads()
    for name in names:
        try:
            (Path(claims) / name).touch(exist_ok=False)
        except FileExistsError:
            continue
        compile_one(name, dtype)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
