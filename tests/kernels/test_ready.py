"""What has kernels made ready needs no folder for temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from ptymesh.kernels.cpu import compiling, ready


def test_without_a_place_for_the_lock_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else []
    with ready._one_at_a_time():
        pass
    assert not list(tmp_path.iterdir())
    assert not before or len(os.listdir("/proc/self/fd")) == len(before)


@pytest.fixture
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No dtype is ready; what is asked for notes what happens to it, on which thread, and compiles nothing."""
    done: list[str] = []
    monkeypatch.setattr(ready, "_ready", set())
    monkeypatch.setattr(ready, "_threads", {})
    monkeypatch.setattr(ready, "_one_at_a_time", lambda: pytest.fail("it waited for others"))

    def read(dtype: str) -> list[str]:
        done.append(f"{dtype} {threading.current_thread().name}")
        return []

    monkeypatch.setattr(compiling, "is_up_to_date", lambda: True)
    monkeypatch.setattr(compiling, "read", read)
    return done


def test_what_is_on_disk_waits_for_nobody(nothing_read: list[str]) -> None:
    assert ready.make_ready(torch.complex64) is False
    assert nothing_read == ["complex64 MainThread"]
    assert ready.make_ready(torch.complex64) is False and len(nothing_read) == 1, "it is ready"


def test_kernels_are_read_on_another_thread_meanwhile(nothing_read: list[str]) -> None:
    ready.start_preparing(torch.complex64)
    ready.start_preparing(torch.complex64)
    assert ready.make_ready(torch.complex64) is False
    assert nothing_read == ["complex64 ptymesh-kernels", "complex64 MainThread"]


def test_what_failed_on_the_thread_is_told_when_it_is_needed(
    nothing_read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(dtype: str) -> list[str]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(compiling, "read", fails)
    ready.start_preparing(torch.complex64)
    with pytest.raises(RuntimeError, match="no such kernel"):
        ready.make_ready(torch.complex64)


def test_kernels_of_other_files_are_not_taken_for_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "places", lambda: {tmp_path})
    assert not compiling.is_up_to_date()
    (tmp_path / compiling.MARK).write_text("another digest")
    assert not compiling.is_up_to_date() and len(compiling.missing("complex64")) == len(compiling.kernels())
    compiling.mark_as(tmp_path, compiling.digest())
    assert compiling.is_up_to_date()


@pytest.mark.forked
@pytest.mark.sample(2)
@pytest.mark.parametrize(("reads_s", "waits_s", "threads"), [(0.3, 10.0, 1), (60.0, 0.1, 2)])
def test_a_program_that_ends_waits_for_who_reads_kernels(reads_s: float, waits_s: float, threads: int) -> None:
    """As long as it may: a run whose data are missing ends while they are read."""
    program = f"""
import atexit, threading, time, torch
from ptymesh.kernels.cpu import ready
atexit.register(lambda: print(threading.active_count()))  # what is registered first comes last
ready._read_or_compile, ready.ENDS_S = lambda dtype: time.sleep({reads_s}), {waits_s}
ready.start_preparing(torch.complex64)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == threads
