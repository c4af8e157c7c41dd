"""Ranks that hang while they join, as NCCL does where it has taken a network that leads nowhere."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ptymesh.distributed import joining
from ptymesh.distributed.agreement import difference
from ptymesh.distributed.rank_info import RankInfo
from warm import python

#: A rank whose process group never comes about; rank 1 stands still somewhere else, if it is to be late.
PROGRAM = """
import sys, time
import torch.distributed as dist
from ptymesh.distributed import heartbeat as heartbeat, watchdog, joining
heartbeat.BUDGETS_S["join"] = 2.0
watchdog.TICK_S, watchdog.LOOK_S, watchdog.GRACE_S = 0.2, 1.0, 0.5
late, meeting = sys.argv[1] == "late", joining.program.enter

def enter(place, dog):
    meeting(place, dog)
    if late and place.rank == 1:
        time.sleep(100)  # it has met the others, and does not go on

joining.program.enter = enter
dist.init_process_group = lambda *a, **k: time.sleep(100)
joining.join("cpu")
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks are forked")


@pytest.mark.parametrize("case", ["all", "late"])
def test_a_group_that_never_comes_about_ends_in_time(case: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [python(["-c", PROGRAM, case], tmp_path, {**os.environ, **place, "RANK": r, "LOCAL_RANK": r}) for r in "01"]
    ended = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    said = "".join(ended)
    if case == "all":
        assert "All 2 ranks have stood still for" in said and "NCCL_SOCKET_IFNAME" in said, said
    else:
        assert "Rank 1 (process" in said and "in the phase 'join' after 0 collectives; the others wait" in said, said


class Joining(Exception):
    """A rank goes on to join the others."""


def test_a_rank_takes_its_gpu_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch sends single messages by way of GPU 0, and hangs."""
    own, taken = torch.device("cuda", 1), []

    def joins() -> bool:
        raise Joining

    place = SimpleNamespace(rank=1, size=2, local_rank=1, local_size=2)
    for name, given in (
        ("settle_environment", place),
        ("device_for", own),
        ("check_sums", own),
        ("backend_for", "nccl"),
    ):
        monkeypatch.setattr(joining, name, lambda *_, given=given: given)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(set_device=taken.append))
    monkeypatch.setattr(joining.dist, "is_initialized", joins)
    with pytest.raises(Joining):
        joining.join("cuda")
    assert taken == [own]


#: A rank that says at once for whom it waits, and gives up after three seconds.
IMPATIENT = """
import sys
from ptymesh.distributed import heartbeat, joining
from ptymesh.errors import PtymeshError
heartbeat.LEAST_JOIN_S, joining.NOTICE_S = 0.0, 0.5
try:
    joining.join("cpu").close()
except PtymeshError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
"""


def ended(folder: Path, places: list[dict[str, str]], port: int | None = None) -> list[tuple[int, str]]:
    """Status and standard error of ranks that are placed so by the environment."""
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    common["PTYMESH_TIMEOUT"] = "3"
    ranks = [python(["-c", IMPATIENT], folder, {**common, "LOCAL_RANK": "0", **place}) for place in places]
    return [(rank.returncode, said) for rank, (_, said) in [(rank, rank.communicate(timeout=60)) for rank in ranks]]


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    ((status, said),) = ended(tmp_path, [{"RANK": "0"}])
    waits, gives_up = said.strip().splitlines()
    assert waits.startswith("ptymesh: rank 0 of 2 (by RANK and WORLD_SIZE in the environment) waits for rank 1 at 127.")
    assert waits.endswith(", up to 3 s (--timeout).")
    assert status == 1 and gives_up.startswith("Rank 1 of 2 did not come within 3 s; see whether every node")


@pytest.mark.parametrize("answers", [False, True], ids=["nobody", "another program"])
def test_a_first_rank_that_never_comes(answers: bool, tmp_path: Path) -> None:
    """Torch would wait for ever for a program that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not answers:
            server.close()
        ((status, said),) = ended(tmp_path, [{"RANK": "1"}], port)
    lines = [line for line in said.splitlines() if "[c10d]" not in line]
    assert lines[0].startswith("ptymesh: rank 1 of 2 (by RANK and WORLD_SIZE in the environment) waits for rank 0 at")
    assert status == 1 and lines[-1].startswith(f"Rank 1 cannot reach rank 0 at 127.0.0.1:{port} (nothing there has")


def test_an_address_that_is_none(tmp_path: Path) -> None:
    ((status, said),) = ended(tmp_path, [{"RANK": "1", "MASTER_ADDR": "nowhere.invalid"}])
    lines = [line for line in said.splitlines() if "[c10d]" not in line]
    assert "(no machine is known as 'nowhere.invalid': correct MASTER_ADDR), up to 3 s" in lines[0]
    assert status == 1 and lines[-1].endswith("no machine is known as 'nowhere.invalid': correct MASTER_ADDR.")


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ([{"RANK": "0"}], "another process does, perhaps a second rank 0; give each process a RANK of its own"),
        ([{"RANK": "1", "WORLD_SIZE": "3"}] * 2, "Rank 1 of 3 is process "),
    ],
    ids=["first", "second"],
)
def test_two_processes_of_one_rank(others: list[dict[str, str]], sentence: str, tmp_path: Path) -> None:
    found = ended(tmp_path, [{"RANK": "0", "WORLD_SIZE": "3"}, *others])
    assert sum(status == 2 and sentence in said for status, said in found) == 1, found
    assert all(status for status, _ in found), found


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"WORLD_SIZE": "3"}, "Rank 1 has number of ranks 3, rank 0 has 2: start all ranks with the same programs"),
        ({"PTYMESH_KERNELS": "torch"}, "Rank 1 has PTYMESH_KERNELS torch, rank 0 has auto: "),
    ],
    ids=["sizes", "kernels"],
)
def test_ranks_of_different_kinds(other: dict[str, str], sentence: str, tmp_path: Path) -> None:
    found = ended(tmp_path, [{"RANK": "0"}, {"RANK": "1", **other}])
    assert [status for status, _ in found] == [2, 2] and all(sentence in said for _, said in found), found


def test_versions_are_compared() -> None:
    place = RankInfo(1, 2, 1, 2, "torchrun")
    facts = joining.facts_of_process(place, "gloo")
    assert facts["torch"] == torch.__version__.partition("+")[0] or facts["torch"] == torch.__version__
    assert {"ptymesh", "numba", "backend", "number of ranks"} < facts.keys()
    said = difference({0: facts, 1: {**facts, "torch": "2.0"}}, "mend it")
    assert said == f"Rank 1 has torch 2.0, rank 0 has {facts['torch']}: mend it."


#: A program whose second rank fails when it is first tried.
ONCE = """
import os, sys
from ptymesh.distributed.joining import join
world = join("cpu")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and world.rank == 1:
    raise RuntimeError("of the first attempt")
world.barrier()
print("done", file=sys.stderr)
"""


@pytest.mark.long
def test_torchrun_starts_ranks_again(tmp_path: Path) -> None:
    """With the same store, in which lies why they ended."""
    (tmp_path / "once.py").write_text(ONCE)
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "once.py"]
    process = python(["-m", "torch.distributed.run", *options], tmp_path, spares=4)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and said.count("done") == 2, said
