"""Patterns on the device, in the host's memory or on disk: the same bits, within their room, none left behind."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.measurement import ArraySource
from ptymesh.physics.resample import corner_crop
from ptymesh.storage import fetched, scratch
from ptymesh.storage import memory_budget as memory
from ptymesh.storage.fetched import BufferPool, Hosted, Staged
from ptymesh.storage.memory_budget import MemoryBudget, choose_storage, stored
from ptymesh.storage.patterns import Patterns, Resident, Slotted
from warm import python

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KINDS = ("resident", "hosted", "staged")
FRAME = 12 * 16 * 2


def counts(views: int = 300, dtype: type = np.uint16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 200, (views, 12, 16)).astype(dtype)


def store(kind: str, data: np.ndarray, folder: Path, capacity: int = 40 * FRAME) -> Patterns:
    whole = torch.from_numpy(data)
    made: Slotted
    if kind == "resident":
        made = Resident(torch.empty_like(whole))
    elif kind == "hosted":
        made = Hosted(data.shape, whole.dtype, CPU, capacity)
    else:
        made = Staged(data.shape, whole.dtype, CPU, capacity, folder)
    made.fill(whole.split(64))
    return made


def same(found: Tensor, wanted: np.ndarray) -> None:
    assert found.numpy().dtype == wanted.dtype
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_detectors_own_bits(kind: str, dtype: type, tmp_path: Path) -> None:
    data = counts(dtype=dtype)
    held = store(kind, data, tmp_path)
    for rows in np.array_split(np.random.default_rng(1).permutation(300), 23):
        same(held.rows(torch.from_numpy(rows)), data[rows])
    same(held.take(torch.arange(290, 300)), data[290:])
    assert held.nbytes == data.nbytes and len(held) == 300
    held.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_yields_pieces_in_order(kind: str, tmp_path: Path) -> None:
    data, rows = counts(), np.random.default_rng(2).permutation(300)[:101]
    held = store(kind, data, tmp_path)
    swept = list(held.sweep(rows, 10, coming=np.arange(30)))
    assert [len(piece) for piece in swept] == [10] * 10 + [1]
    same(torch.cat(swept), data[rows])
    assert [len(piece) for piece in held.sweep(rows[:0], 10)] == [0]
    held.close()


@pytest.mark.parametrize("kind", KINDS)
def test_cropped_patterns_are_the_crops(kind: str, tmp_path: Path) -> None:
    data, rows = counts(), torch.tensor([5, 250, 7])
    held = store(kind, data, tmp_path)
    small = held.cropped(2)
    same(torch.cat(list(small.sweep(rows.numpy(), 2))), corner_crop(torch.from_numpy(data), 2)[rows].numpy())
    same(small.take(rows), corner_crop(torch.from_numpy(data), 2)[rows].numpy())
    assert small.shape == (300, 6, 8) and small.kind == held.kind and small.dtype == held.dtype
    held.close()


@pytest.mark.parametrize("coarsen", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_leave_and_join(kind: str, coarsen: int, tmp_path: Path) -> None:
    """A random walk of migrations against plain indexing; the rows stay in the order of the views."""
    rng = np.random.default_rng(3)
    every = counts(400)
    own = np.sort(rng.choice(400, 150, replace=False))
    held = store(kind, every[own], tmp_path)
    if coarsen > 1:
        whole, held = held, held.cropped(coarsen)
        every, before = corner_crop(torch.from_numpy(every), coarsen).numpy(), every[own]
    for _ in range(12):
        leaving = rng.choice(own, rng.integers(0, len(own) // 2), replace=False)
        others = np.setdiff1d(np.arange(400), own)
        joining = np.sort(rng.choice(others, rng.integers(0, len(others) // 2), replace=False))
        same(held.take(torch.from_numpy(np.searchsorted(own, np.sort(leaving)))), every[np.sort(leaving)])
        now = np.sort(np.concatenate((np.setdiff1d(own, leaving), joining)))
        source = np.where(np.isin(now, own), np.searchsorted(own, now).clip(max=len(own) - 1), -1)
        held.replace(torch.from_numpy(source), torch.from_numpy(every[joining]).split(7))
        own = now
        assert held.shape == (len(own), 12 // coarsen, 16 // coarsen)
        rows = rng.permutation(len(own))
        same(torch.cat(list(held.sweep(rows, 16))), every[own[rows]])
    with pytest.raises(AssertionError, match="0 patterns came for 2 places"):
        held.replace(torch.tensor([-1, 0, -1]), iter(()))
    if coarsen > 1:
        same(torch.cat(list(whole.sweep(np.arange(150), 16))), before)
        whole.close()
    held.close()


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("elsewhere", [Hosted, Staged])
def test_any_gpu_gets_what_lies_elsewhere(
    elsewhere: type, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From page-locked memory, on a stream of its own, which the one that computes waits for."""
    gpu, sent, locked, waited = torch.device(kind, 0), [], [], []
    to, empty = Tensor.to, torch.empty

    def making(*given: Any, pin_memory: bool = False, **how: Any) -> Tensor:
        locked.append(pin_memory)
        return empty(*given, **how)

    def sending(self: Tensor, *given: Any, **how: Any) -> Tensor:
        if given[:1] != (gpu,):
            return to(self, *given, **how)
        sent.append(how)
        return self

    module = SimpleNamespace(
        Stream=lambda device: "its own",
        Event=lambda: SimpleNamespace(record=lambda stream: sent.append(stream)),
        current_stream=lambda device: SimpleNamespace(wait_event=waited.append),
        device=lambda device: nullcontext(),
        stream=lambda stream: nullcontext(),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)
    data = counts(views=6)
    more = (tmp_path,) if elsewhere is Staged else ()
    held = elsewhere(data.shape, torch.uint16, gpu, 40 * FRAME, *more)
    held.fill([torch.from_numpy(data)])
    monkeypatch.setattr(torch, "empty", making)
    monkeypatch.setattr(Tensor, "to", sending)
    same(held.rows(torch.tensor([4, 1])), data[[4, 1]])
    held.close()
    assert sent == [{"non_blocking": True}, "its own"] and locked == [True] and len(waited) == 1


def test_a_rank_without_views(tmp_path: Path) -> None:
    held = store("staged", counts(0), tmp_path)
    assert [len(piece) for piece in held.sweep(np.arange(0), 4)] == [0] and held.nbytes == 0
    held.replace(torch.tensor([-1, -1]), [torch.from_numpy(counts(2))])
    same(held.rows(torch.tensor([1, 0])), counts(2)[::-1])
    held.close()


# --- which kind ---


@pytest.mark.parametrize(
    ("device", "budget", "free", "kind"),
    [
        (CPU, None, 0, "host"),
        (CPU, 1000, 0, "host"),
        (CPU, 999, 0, "disk"),
        (CUDA, None, 2000, "device"),
        (CUDA, None, 1100, "host"),
        (CUDA, 1000, 2000, "device"),
        (CUDA, 1000, 1100, "host"),
        (CUDA, 999, 2000, "disk"),
    ],
)
def test_choice(
    device: torch.device, budget: int | None, free: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    assert choose_storage(1000, 10, device, MemoryBudget(budget)) == kind


def test_a_budget_holds_some_patterns() -> None:
    with pytest.raises(BadInput, match=r"memory_budget is 159 bytes, and one pattern takes 10 bytes; .* 160 bytes"):
        choose_storage(1000, 10, CPU, MemoryBudget(159))


def test_all_ranks_choose_alike(tmp_path: Path) -> None:
    """The rank with most views decides: another one's 20 would fit."""
    held = stored(ArraySource(counts()), np.arange(20), 21, CPU, MemoryBudget(20 * FRAME, tmp_path))
    assert held.kind == "disk"
    held.close()


def test_where_patterns_are_is_said(tmp_path: Path) -> None:
    assert store("resident", counts(), tmp_path).where() == "Patterns: 115 kB per rank (uint16) in host memory"
    held = store("staged", counts(), tmp_path)
    assert held.where() == f"Patterns: 115 kB per rank (uint16) staged on disk in {tmp_path}"
    held.close()


# --- memory ---


def test_what_is_kept_stays_within_its_capacity(tmp_path: Path) -> None:
    held = store("staged", counts(), tmp_path, capacity=40 * FRAME)
    assert isinstance(held, Staged)
    for seed in range(4):
        for _ in held.sweep(np.random.default_rng(seed).permutation(300), 9):
            assert held._kept_bytes == sum(len(key) // 8 for key in held._pieces) * FRAME <= 40 * FRAME
    held.close()


def test_what_comes_next_is_fetched_meanwhile(tmp_path: Path) -> None:
    held = store("staged", counts(), tmp_path, capacity=100 * FRAME)
    swept = held.sweep(np.arange(40), 10, coming=np.arange(200, 240))
    next(swept)
    until(lambda: held.fetched_bytes == 50 * FRAME)  # half of the capacity ahead, then no more
    for _ in swept:
        pass
    until(lambda: held.fetched_bytes == 80 * FRAME)  # the next batch's are on the way
    before = held.waited_s
    list(held.sweep(np.arange(200, 240), 10))
    assert held.fetched_bytes == 80 * FRAME, "they were there already"
    assert held.waited_s - before < 0.1
    held.close()


def until(true: object, patience_s: float = 10.0) -> None:
    end = time.monotonic() + patience_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)


def test_pieces_of_a_batch_are_kept_for_its_next_sweep(tmp_path: Path) -> None:
    held = store("staged", counts(), tmp_path, capacity=60 * FRAME)
    for _ in range(3):
        list(held.sweep(np.arange(50), 10))
    assert held.fetched_bytes == 50 * FRAME
    held.close()


def test_memory_of_pieces_is_used_again_when_nobody_holds_them() -> None:
    memory = BufferPool()
    first, second = memory.take_buffer(4000), memory.take_buffer(4000)
    first[:], second[:] = 1, 2
    place, part = first.data_ptr(), first.view(torch.int32)[:10]
    del first
    assert memory.take_buffer(4000).data_ptr() != place, "a part of it is still held"
    assert int(part[0]) == 0x01010101 and bool((second == 2).all())
    del part
    assert memory.take_buffer(3000).data_ptr() == place
    small = memory.take_buffer(1000)
    assert len(small) == 1000 and not memory._free, "what is too large for this is given back"
    assert memory.take_buffer(0).numel() == 0


MEASURE = """
import ctypes, resource, sys
from pathlib import Path
import numpy as np, torch
from ptymesh.io.load import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.storage.memory_budget import MemoryBudget
from ptymesh.distributed.world import Solo
from ptymesh.kernels.cpu import ready
from ptymesh.physics.model import Model
from ptymesh.problem import Problem
from ptymesh.problem.counts import mean_pattern

def peak():  # what getrusage says on Linux includes the process that started this one
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

def give_back():  # what malloc keeps of memory that was freed, from run to run 0 or 100 MB, is nobody's
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)

torch.set_num_threads(1)
data = DataOptions(path=sys.argv[1], keys={"patterns": "patterns", "positions": "positions"})
scan = load_measurement(data, PositionOptions(unit="px"))
model = Model.for_geometry(scan.geometry, dtype=torch.complex64)
budget = int(sys.argv[2]) or None
ready.make_ready(torch.complex64)  # to read kernels takes 80 to 160 MB, more or less of them from run to run
before = peak()
layout = Replicated(Solo(), scan.positions)
problem = Problem(model, scan, layout, torch.complex64, MemoryBudget(budget, Path(sys.argv[1]).parent))
give_back()
mean = mean_pattern(problem)
total = 0
for counts in problem.loader.patterns.sweep(np.random.default_rng(0).permutation(scan.views), 64):
    total += int(counts.view(torch.int16).sum())
    give_back()
print(problem.loader.patterns.kind, peak() - before, float(mean.sum()), total)
"""


@pytest.mark.long
@pytest.mark.parametrize("ending", ["h5", pytest.param("npz", marks=pytest.mark.long)])
def test_memory_stays_within_the_budget(ending: str, tmp_path: Path) -> None:
    """200 MB of patterns and a budget of 50 MB: reading, averaging and sweeping them takes the same workspace as with
    patterns in memory, and no more than the budget besides."""
    path = large_scan(tmp_path / f"scan.{ending}")
    found = {}
    for budget in (50_000_000, 0):
        process = python(["-c", MEASURE, str(path), str(budget)], tmp_path)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        kind, *numbers = out.split()
        found[kind] = [float(number) for number in numbers]
    assert found["disk"][1:] == found["host"][1:]
    assert found["host"][0] > 200e6, found
    assert found["disk"][0] < 50e6 + (found["host"][0] - 200e6), found
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def large_scan(path: Path) -> Path:
    """200 MB of uint16 patterns, 100 distinct ones over and over."""
    import h5py

    few = np.random.default_rng(0).poisson(3.0, (100, 128, 128)).astype(np.uint16)
    many = np.broadcast_to(few, (61, *few.shape)).reshape(-1, 128, 128)
    positions = np.stack(np.divmod(np.arange(6100.0), 100), axis=1)
    if path.suffix == ".npz":
        np.savez(path, patterns=many, positions=positions)
        return path
    with h5py.File(path, "w") as file:
        file.create_dataset("patterns", data=many, chunks=(1, 128, 128))
        file["positions"] = positions
    return path


# --- the disk ---


def test_the_file_has_no_name_and_goes_with_its_store(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    held = store("staged", counts(), tmp_path)
    assert isinstance(held, Staged) and list(tmp_path.iterdir()) == []
    held.close()
    held.close()
    with pytest.raises(ValueError, match="closed file"):
        held._file._file.seek(0)
    forgotten = store("staged", counts(), tmp_path)
    file = forgotten._file._file  # type: ignore[attr-defined]
    del forgotten
    assert file.closed
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_source_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(fetched, "Scratch", lambda *a: made.append(scratch.Scratch(*a)) or made[-1])

    class Broken(ArraySource):
        def read(self, views: np.ndarray) -> np.ndarray:
            if views[0]:
                raise BadInput("the file is damaged")
            return super().read(views)

    with pytest.raises(BadInput, match="damaged"):
        stored(Broken(counts()), np.arange(300), 300, CPU, MemoryBudget(20 * FRAME, tmp_path))
    assert made[0]._file.closed and list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone, which is not a folder; make it, or name another with --scratch"):
        stored(ArraySource(counts()), np.arange(300), 300, CPU, MemoryBudget(20 * FRAME, tmp_path / "gone"))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond a megabyte: the operating system refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


SENTENCE = (
    r"The patterns cannot be staged on disk \(.*: 2\.3 MB needed, [\d.]+ \w+ free in \S+\); name a folder with room "
    r"with --scratch, or give a larger --memory-budget\."
)


def test_a_full_disk_is_found_before_anything_is_read(tmp_path: Path, small_disk: None) -> None:
    class Unread(ArraySource):
        def read(self, views: np.ndarray) -> np.ndarray:
            raise AssertionError("read")

    with pytest.raises(BadInput, match=SENTENCE):
        stored(Unread(counts(6000)), np.arange(6000), 6000, CPU, MemoryBudget(100 * FRAME, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_while_writing(tmp_path: Path, small_disk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where room cannot be reserved, writing finds out."""

    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unable)
    with pytest.raises(
        BadInput, match=SENTENCE.replace("0023", "0000246").replace("2.46e", "2.46e")[:0] or "cannot be"
    ):
        stored(ArraySource(counts(6000)), np.arange(6000), 6000, CPU, MemoryBudget(100 * FRAME, tmp_path))


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    held = store("staged", counts(), tmp_path)
    assert isinstance(held, Staged)
    os.truncate(held._file._number, 10 * FRAME)
    with pytest.raises(PtymeshError, match=rf"staged in {tmp_path} cannot be read \(it ends {FRAME} bytes too early\)"):
        held.rows(torch.tensor([20]))
    held.close()


@pytest.mark.parametrize("system", ["no preadv", "short reads", "no fadvise"])
def test_systems_that_offer_less(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = counts()
    held = store("staged", data, tmp_path)
    if system == "short reads":
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: whole(fd, [buffers[0][:100]], at))
    else:
        monkeypatch.delattr(os, "preadv" if system == "no preadv" else "posix_fadvise")
    rows = np.random.default_rng(4).permutation(300)
    same(torch.cat(list(held.sweep(rows, 50))), data[rows])
    held.close()


@pytest.mark.parametrize("folder", ["file", "file/x", "x" * 300, "/dev/null", "loop", "a\0b"])
def test_a_scratch_that_is_no_folder(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="which is not a folder; make it, or name another with --scratch"):
        scratch.Scratch(tmp_path / folder, 10, FRAME)


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_a_scratch_that_cannot_be_written(folder: str) -> None:
    with pytest.raises(
        BadInput, match=rf"cannot be staged on disk \(.* in {folder}\b.*name a folder with room with --scratch"
    ):
        scratch.Scratch(Path(folder), 10, FRAME)


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(scratch.tempfile, "gettempdir", none)
    with pytest.raises(BadInput, match=r"no folder for temporary files .* --scratch"):
        scratch.Scratch(None, 10, FRAME)


def test_more_than_any_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be staged on disk .*File too large.*; name a folder with room"):
        scratch.Scratch(tmp_path, 1 << 60, FRAME)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_when_it_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(BadInput, match=r"cannot be staged on disk \(Input/output error: .* --scratch"):
        store("staged", counts(), tmp_path)
    assert list(tmp_path.iterdir()) == []
