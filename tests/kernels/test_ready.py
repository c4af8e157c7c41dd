"""What has kernels made ready needs no folder for temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ptymesh.kernels import ready


def test_without_a_place_for_the_lock_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else []
    with ready._one_at_a_time():
        pass
    assert not list(tmp_path.iterdir())
    assert not before or len(os.listdir("/proc/self/fd")) == len(before)
