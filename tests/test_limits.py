"""How much memory a job or container leaves: what the system lets go of when it is needed is free."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ptymesh import limits

GB = 10**9
#: The files of a control group in version 2 and 1: limit, use, and what the names in memory.stat begin with.
FILES = {2: ("memory.max", "memory.current", ""), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    return tmp_path / "cgroup"


def belongs(root: Path, said: str) -> None:
    (root.parent / "own").write_text(said)


def group(folder: Path, most: int | str, used: int, version: int = 2, **stat: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit, usage, prefix = FILES[version]
    (folder / limit).write_text(f"{most}\n")
    (folder / usage).write_text(f"{used}\n")
    (folder / "memory.stat").write_text("".join(f"{prefix}{name} {count}\n" for name, count in stat.items()))


def test_files_that_were_read_do_not_count(root: Path) -> None:
    belongs(root, "0::/job\n")
    group(root / "job", 64 * GB, 63 * GB, anon=GB, inactive_file=50 * GB, active_file=11 * GB, slab_reclaimable=GB)
    assert limits._read_cgroup_limits() == 63 * GB


def test_the_tightest_of_the_groups_above_counts(root: Path) -> None:
    belongs(root, "0::/slurm/job/step\n")
    group(root / "slurm/job/step", "max", 2 * GB, anon=2 * GB)
    group(root / "slurm/job", 8 * GB, 2 * GB, anon=2 * GB)
    group(root / "slurm", 9 * GB, 5 * GB, anon=5 * GB)
    assert limits._read_cgroup_limits() == 4 * GB


@pytest.mark.parametrize("own", ["/", "/../..", "/docker/of-the-host"])
@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_the_root_is_its_group(root: Path, own: str, version: int) -> None:
    belongs(root, f"0::{own}\n" if version == 2 else f"3:cpu,cpuacct:/\n2:memory:{own}\n0::/\n")
    group(root / ("" if version == 2 else "memory"), 4 * GB, 3 * GB, version, active_file=GB)
    assert limits._read_cgroup_limits() == 2 * GB


@pytest.mark.parametrize("stat", ["", "odd\n", "active_file many\n"])
def test_a_limit_holds_whatever_the_statistics_say(root: Path, stat: str) -> None:
    belongs(root, "0::/job\n")
    group(root / "job", 4 * GB, GB)
    (root / "job" / "memory.stat").write_text(stat)
    assert limits._read_cgroup_limits() == 3 * GB


@pytest.mark.parametrize("said", ["", "nothing\n", "0::/job\n", "2:memory:/job\n0::/\n"])
def test_without_a_limit(root: Path, said: str) -> None:
    belongs(root, said)
    assert limits._read_cgroup_limits() == sys.maxsize
