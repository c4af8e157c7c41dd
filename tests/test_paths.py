"""What is said of paths that cannot be followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptymesh.errors import BadInput
from ptymesh.paths import usable


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process may not enter, be it root's or not."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o000)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


def test_a_folder_without_permission_is_not_nowhere(locked: Path) -> None:
    with pytest.raises(BadInput, match=r"^data\.path \S+ cannot be reached \(Permission denied\); give another path"):
        usable(locked / "scan.h5", "data.path")


@pytest.mark.parametrize("name", ["file/scan.h5", "x" * 300, "loop"])
def test_what_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match=r"data\.path \S+ leads nowhere \("):
        usable(tmp_path / name, "data.path")
