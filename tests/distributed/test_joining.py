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
