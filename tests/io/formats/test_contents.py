"""How formats are recognised: by what regular files begin with, and by nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ptymesh.io.formats import astar, empad, merlin, tia
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions


@pytest.mark.parametrize("reader", [astar, empad, merlin, tia])
def test_a_pipe_is_not_waited_for(tmp_path: Path, reader: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not reader.recognises(tmp_path / "pipe", DataOptions(path=tmp_path / "pipe"))


def test_first_bytes_of_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"MQ")
    assert first_bytes(tmp_path / "short", 4) == b"MQ"
    assert first_bytes(tmp_path / "missing", 4) == b"" == first_bytes(tmp_path, 4)
