"""The doctor, on this machine and on made-up ones: what works, what hangs, and what it advises."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ptymesh.distributed import shared_memory
from ptymesh.launcher import doctor

#: A rank of a backend that hangs as long as GPUs copy to each other directly.
HANGS = """
import json, os, time
if os.environ.get("NCCL_P2P_DISABLE") != "1":
    time.sleep(600)
if os.environ["RANK"] == "0":
    print(json.dumps({"through": "nccl", "allreduce": [{"bytes": 4, "seconds": 1.0, "GB_per_s": 2.0}]}))
"""
#: Copies of which the second pair never arrives.
STUCK = """
import json, sys, time
print(json.dumps({"from": 0, "to": 1}), file=sys.stderr, flush=True)
print(json.dumps({"from": 0, "to": 1, "direct": True, "GB_per_s": 40.0, "latency_us": 9.0}), flush=True)
print(json.dumps({"from": 1, "to": 0}), file=sys.stderr, flush=True)
time.sleep(600)
"""
#: Between CPUs, ranks share memory where they can.
NEARBY = [("cpu", "auto", 3)] if shared_memory.possible() else []
SHARED = "shared memory" if shared_memory.possible() else "gloo"
GPU = {"kind": "cuda", "name": "H100", "slice": False, "memory_bytes": 80 << 30, "memory_free_bytes": 79 << 30}


def program(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "program.py"
    path.write_text(body)
    return (str(path),)


@pytest.mark.forked(4)
@pytest.mark.parametrize(
    ("backend", "through"), [pytest.param("gloo", "gloo", marks=pytest.mark.long), ("auto", SHARED)]
)
def test_ranks_can_sum_here(backend: str, through: str) -> None:
    tried = doctor.hang_test("cpu", backend, 2, 120)
    assert tried["backend"] == through
    assert tried["works"] and not tried["hangs"], tried
    assert [row["bytes"] for row in tried["allreduce"]] == [1 << 10, 1 << 15, 1 << 20, 1 << 24]
    assert all(row["seconds"] > 0 and row["GB_per_s"] > 0 for row in tried["allreduce"])


@pytest.mark.forked(4)
def test_a_hang_is_found_in_time_and_the_remedy_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", program(tmp_path, HANGS))
    began = time.monotonic()
    tried = doctor.hang_test("cuda", "nccl", 2, 1)
    assert tried["hangs"] and not tried["works"] and time.monotonic() - began < 20
    other = doctor.hang_test("cuda", "nccl", 2, 60, doctor.NO_PEERS)
    assert other["works"] and other["allreduce"][0]["GB_per_s"] == 2.0
    said = doctor.advice({"backends": [{**tried, "without_peers": other}], "peers": [], "devices": [GPU]})
    assert said[0].startswith("nccl between 2 cuda ranks hangs (given up after 1 s)")
    assert said[1].startswith("With NCCL_P2P_DISABLE=1 the same works in ")
    hopeless = doctor.advice({"backends": [{**tried, "without_peers": tried}], "peers": [], "devices": [GPU]})
    assert hopeless[1].startswith("NCCL_P2P_DISABLE=1 does not help")


@pytest.mark.forked(4)
def test_a_backend_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", program(tmp_path, "import sys; sys.exit('no such library')"))
    tried = doctor.hang_test("cuda", "nccl", 2, 60)
    assert not tried["works"] and not tried["hangs"]
    (said,) = doctor.advice({"backends": [tried], "peers": [], "devices": [GPU]})
    assert said.startswith("nccl between 2 cuda ranks fails: ") and "no such library" in said


@pytest.mark.forked(4)
def test_the_pair_at_which_copies_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PEERS", program(tmp_path, STUCK))
    first, second = doctor.peers(4)
    assert first["GB_per_s"] == 40.0 and (second["from"], second["to"]) == (1, 0) and second["hangs"]
    (said,) = doctor.advice({"backends": [], "peers": [first, second], "devices": [GPU, GPU]})
    assert said.startswith("Copies from cuda:1 to cuda:0 hang; set NCCL_P2P_DISABLE=1")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], [*NEARBY, ("cpu", "gloo", 3)]),
        ([GPU], [*NEARBY, ("cpu", "gloo", 3)]),
        ([GPU, GPU], [*NEARBY, ("cpu", "gloo", 3), ("cuda", "nccl", 2), ("cuda", "gloo", 2)]),
        ([{**GPU, "slice": True}] * 2, [*NEARBY, ("cpu", "gloo", 3)]),
    ],
)
def test_what_is_tried(found: list[dict[str, Any]], expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_backends", lambda: ["gloo", "nccl"])
    assert doctor.trials(found, 3) == expected


def test_slices_and_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {"backends": [], "peers": []}
    (said,) = doctor.advice({**nothing, "devices": [{**GPU, "index": 0, "slice": True}]})
    assert said.startswith("cuda:0: MIG slice. Slices cannot form one NCCL group")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert doctor.advice({**nothing, "devices": []}) == ["No GPU was found; runs use the CPU."]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.advice({**nothing, "devices": []}) == ["No GPU: CUDA_VISIBLE_DEVICES is empty."]


def test_system_disk_and_environment(tmp_path: Path) -> None:
    system = doctor.system()
    assert system["cores"] >= 1 and system["memory_bytes"] > system["memory_free_bytes"] > 0
    assert "gloo" in system["backends"] and any(name.startswith("lo") for name in system["interfaces"])
    disk = doctor.disk(tmp_path)
    assert disk["write_MB_per_s"] > 0 and disk["read_MB_per_s"] > 0 and disk["free_bytes"] > 0
    assert not list(tmp_path.iterdir()), "nothing is left"
    environ = {"NCCL_DEBUG": "INFO", "HOME": "/", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "3"}
    assert list(doctor.environment(environ)) == ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "OMP_NUM_THREADS"]


def test_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "win32":
        pytest.skip("a shell script stands for the tool")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 575.57.08; echo 575.57.08\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor.driver() == "575.57.08"
    monkeypatch.setenv("PATH", "")
    assert doctor.driver() is None
