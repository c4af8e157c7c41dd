"""Ranks that hang while they join, as NCCL does where it has taken a network that leads nowhere."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
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


def meeting() -> dict[str, str]:
    """Return an address of this machine at which nobody is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks are forked")


def test_a_group_that_never_comes_about_ends_in_time(tmp_path: Path) -> None:
    ranks = {}
    for case in ("all", "late"):  # at the same time, as they wait
        common = {**os.environ, **meeting(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        places = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
        ranks[case] = [python(["-c", PROGRAM, case], tmp_path, place) for place in places]
    said = {case: "".join(rank.communicate(timeout=60)[1] for rank in both) for case, both in ranks.items()}
    assert [rank.returncode for both in ranks.values() for rank in both] == [1] * 4
    assert "All 2 ranks have stood still for" in said["all"] and "NCCL_SOCKET_IFNAME" in said["all"], said
    late = said["late"]
    assert "Rank 1 (process" in late and "in the phase 'join' after 0 collectives; the others wait" in late, late


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


Ends = list[tuple[int, str]]


def started(folder: Path, *places: dict[str, str]) -> Callable[[], Ends]:
    """Start ranks that are placed so by the environment; what is returned waits for status and standard error."""
    common = {**os.environ, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "PTYMESH_TIMEOUT": "3", **meeting()}
    ranks = [python(["-c", IMPATIENT], folder, {**common, **place}) for place in places]
    return lambda: [
        (rank.returncode, said) for rank, (_, said) in [(one, one.communicate(timeout=60)) for one in ranks]
    ]


def lines_of_ptymesh(said: str) -> list[str]:
    """Return what was said but for what torch says too, which on a slow machine has traces of many lines."""
    return [line for line in said.splitlines() if line.startswith(("ptymesh: ", "Rank "))]


def test_ranks_that_wait_in_vain(tmp_path: Path) -> None:
    """For a rank that never comes; for a first rank where nobody is, or a program that says nothing, for which torch
    would wait for ever; and at an address that is none. All at the same time, as each gives up after three seconds."""
    nobody = meeting()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        places = (
            {"RANK": "0"},
            {"RANK": "1", **nobody},
            {"RANK": "1", "MASTER_PORT": port},
            {"RANK": "1", "MASTER_ADDR": "nowhere.invalid"},
        )
        ends = [end for waiting in [started(tmp_path, place) for place in places] for end in waiting()]
    assert [status for status, _ in ends] == [1] * 4, ends
    alone, first, other, lost = [lines_of_ptymesh(said.strip()) for _, said in ends]

    place = "(by RANK and WORLD_SIZE in the environment)"
    waits, gives_up = alone
    assert waits.startswith(f"ptymesh: rank 0 of 2 {place} waits for rank 1 at 127.")
    assert waits.endswith(", up to 3 s (--timeout).")
    assert gives_up.startswith("Rank 1 of 2 did not come within 3 s; see whether every node")

    for said, where in ((first, nobody["MASTER_PORT"]), (other, port)):
        assert said[0].startswith(f"ptymesh: rank 1 of 2 {place} waits for rank 0 at")
        assert said[-1].startswith(f"Rank 1 cannot reach rank 0 at 127.0.0.1:{where} (nothing there has"), said

    assert "(no machine is known as 'nowhere.invalid': correct MASTER_ADDR), up to 3 s" in lost[0]
    assert lost[-1].endswith("no machine is known as 'nowhere.invalid': correct MASTER_ADDR.")


def test_two_processes_of_one_rank(tmp_path: Path) -> None:
    first = {"RANK": "0", "WORLD_SIZE": "3"}
    second = {"RANK": "1", "WORLD_SIZE": "3"}
    ends = {
        "another process does, perhaps a second rank 0; give each process a RANK of its own": started(
            tmp_path, first, {"RANK": "0"}
        ),
        "Rank 1 of 3 is process ": started(tmp_path, first, second, second),
    }
    for sentence, found in [(sentence, wait()) for sentence, wait in ends.items()]:
        assert sum(status == 2 and sentence in said for status, said in found) == 1, found
        assert all(status for status, _ in found), found


def test_ranks_of_different_kinds(tmp_path: Path) -> None:
    first, second = {"RANK": "0"}, {"RANK": "1"}
    of_sizes = started(tmp_path, first, {**second, "WORLD_SIZE": "3"})
    of_kernels = started(tmp_path, first, {**second, "PTYMESH_KERNELS": "torch"})
    for found, sentence in (
        (of_sizes(), "Rank 1 has number of ranks 3, rank 0 has 2: start all ranks with the same programs"),
        (of_kernels(), "Rank 1 has PTYMESH_KERNELS torch, rank 0 has auto: "),
    ):
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
