"""Ranks with devices that are pretended, joined by a group that behaves as NCCL does (queued.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from warm import python

HERE = Path(__file__).parent
ENGINES = "rpie,lsqml,cg"


def ran(check: str, size: int, folder: Path, *more: str) -> list[tuple[int, str, str]]:
    """Status, output and errors of each rank."""
    program = [str(HERE / "rank_checks.py"), check]
    processes = [python([*program, str(rank), str(size), str(folder / "store"), *more], folder) for rank in range(size)]
    try:
        said = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *out) for process, out in zip(processes, said, strict=True)]


@pytest.mark.stand_in
@pytest.mark.timeout(900)
def test_the_same_bits_as_one_rank_in_both_layouts(tmp_path: Path) -> None:
    ((status, alone, error),) = ran("bits", 1, tmp_path, ENGINES)
    assert status == 0, error
    both = ran("bits", 2, tmp_path, ENGINES)
    assert [status for status, _, _ in both] == [0, 0], both[0][2][-2000:] + both[1][2][-2000:]
    assert both[0][1] == both[1][1] == alone and alone.count("\n") == 6
    digests = [line.split() for line in alone.splitlines()]
    for engine in ENGINES.split(","):
        assert len({found for name, _, found in digests if name == engine}) == 1, "both layouts"


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("host", "NCCL has no use for a tensor of the host (2,)"),
        ("complex", "NCCL takes contiguous real tensors, not (2,) of torch.complex64"),
        ("order", "rank 0: 1: RedOpType.SUM of 3 torch.float32; rank 1: 1: RedOpType.SUM of 2 torch.float32"),
    ],
)
@pytest.mark.stand_in
def test_what_nccl_refuses_or_hangs_at_is_named(check: str, says: str, tmp_path: Path) -> None:
    for status, _, error in ran(check, 2, tmp_path):
        assert status == 1 and says in error, error


@pytest.mark.stand_in
def test_collectives_happen_late(tmp_path: Path) -> None:
    assert [out for _, out, _ in ran("late", 2, tmp_path)] == ["[1.0, 1.0] [3.0, 3.0]\n", "[2.0, 2.0] [3.0, 3.0]\n"]
