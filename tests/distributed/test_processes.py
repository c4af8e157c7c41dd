"""Processes of this machine, seen in /proc and where that is hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptymesh.distributed import processes


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_that_is_hidden_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    own = processes.start_time(os.getpid())
    assert own and own.isdecimal() and processes.fate_of(os.getpid()) == ""
    monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "hidden")))
    assert processes.start_time(os.getpid()) == ""
    for nobody in (ended.pid, 0, -1, 10**30):
        assert processes.start_time(nobody) is None
