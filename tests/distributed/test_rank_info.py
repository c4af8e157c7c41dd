"""Rank and size out of what torchrun, srun and mpirun leave in the environment; addresses and interfaces."""

from __future__ import annotations

import os
import socket

import pytest

import ptymesh
from ptymesh.distributed.rank_info import (
    INTERFACE,
    RankInfo,
    first_host,
    interface_to,
    read,
    settle_environment,
    share_cores,
)
from ptymesh.errors import BadInput

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, RankInfo()),
        (TORCHRUN, RankInfo(3, 4, 1, 2, "torchrun")),
        (SRUN, RankInfo(5, 8, 1, 4, "srun")),
        (OPEN_MPI, RankInfo(1, 2, 1, 2, "mpirun (Open MPI)")),
        (PMI, RankInfo(0, 2, 0, 1, "mpirun (PMI)")),
        ({**SRUN, **TORCHRUN}, RankInfo(3, 4, 1, 2, "torchrun")),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, RankInfo()),
        # a batch script is one process, however many tasks the job has
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, RankInfo()),
        # our own launcher, or torchrun, as the only task of a step
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", **TORCHRUN}, RankInfo(3, 4, 1, 2, "torchrun")),
    ],
)
def test_place(environ: dict[str, str], place: RankInfo) -> None:
    assert read(environ) == place


def test_world_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert (ptymesh.world().rank, ptymesh.world().size) == (0, 1)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert (ptymesh.world().rank, ptymesh.world().size) == (3, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"RANK": "4"}, "RANK is 4 of WORLD_SIZE = 4"), ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment")],
)
def test_odd_environments(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read({**TORCHRUN, **change})


def test_srun_tells_torch_all_it_wants_to_know() -> None:
    environ = dict(SRUN)
    settle_environment(environ)
    wanted = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu003"}
    assert wanted.items() <= environ.items()
    assert read(environ) == RankInfo(5, 8, 1, 4, "torchrun"), "and it is still so afterwards"
    other, another = {**SRUN, "SLURM_PROCID": "0"}, {**SRUN, "SLURM_JOB_ID": "78"}
    settle_environment(other)
    settle_environment(another)
    assert other["MASTER_PORT"] == environ["MASTER_PORT"] != another["MASTER_PORT"]
    assert 61000 <= int(environ["MASTER_PORT"]) < 65000


def test_mpirun_on_one_node_and_on_several() -> None:
    environ = dict(OPEN_MPI)
    settle_environment(environ)
    assert environ["MASTER_ADDR"] == "127.0.0.1" and environ["RANK"] == "1"
    assert environ["GLOO_SOCKET_IFNAME"] == interface_to("127.0.0.1")
    with pytest.raises(BadInput, match=r"mpirun \(PMI\) started ranks on several nodes .* set MASTER_ADDR"):
        settle_environment(dict(PMI))
    named = {**PMI, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5"}
    settle_environment(named)
    assert (named["MASTER_ADDR"], named["MASTER_PORT"]) == ("127.0.0.1", "5"), "what is set stays"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[003-004,7],login1", "gpu003"), ("a,b", "a"), ("node7", "node7"), ("r1n[1,3]-ib", "r1n1-ib")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_no_host() -> None:
    with pytest.raises(BadInput, match="set MASTER_ADDR"):
        first_host("")


def test_interface() -> None:
    names = [name for _, name in socket.if_nameindex()]
    loopback = interface_to("127.0.0.1")
    assert loopback in names and loopback and loopback.startswith("lo")
    assert interface_to("no such host.invalid") is None
    environ = {**TORCHRUN, INTERFACE: loopback}
    settle_environment(environ)
    assert environ["GLOO_SOCKET_IFNAME"] == environ["NCCL_SOCKET_IFNAME"] == loopback
    with pytest.raises(BadInput, match=r"Network interface 'eth99' is not there; this machine has .*lo"):
        settle_environment({**TORCHRUN, INTERFACE: "eth99"})
    mine = {**TORCHRUN, "GLOO_SOCKET_IFNAME": "mine"}
    settle_environment(mine)
    assert mine["GLOO_SOCKET_IFNAME"] == "mine"


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    given = {**OPEN_MPI}
    share_cores(given)
    assert given["OMP_NUM_THREADS"] == "4"
    alone: dict[str, str] = {}
    share_cores(alone)
    assert not alone
    chosen = {**OPEN_MPI, "OMP_NUM_THREADS": "3"}
    share_cores(chosen)
    assert chosen["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    bound = {**OPEN_MPI}
    share_cores(bound)
    assert bound["OMP_NUM_THREADS"] == "2", "the launcher has bound the rank to its own cores"
