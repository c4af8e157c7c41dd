"""Shares of a machine for processes that work beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from ptymesh.distributed import devices
from ptymesh.errors import BadInput
from ptymesh.launcher import device_shares
from ptymesh.launcher.device_shares import Share, share_devices


def shares(device: str, count: int | None, ranks: int) -> list[Share]:
    return share_devices(device, count, ranks, ("--workers", "ranks_per_trial"))


def test_shares_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device_shares, "cores", lambda: 8)
    assert [share.environment for share in shares("cpu", 3, 1)] == [{"OMP_NUM_THREADS": "2"}] * 3
    assert shares("cpu", None, 2)[0].environment == {"OMP_NUM_THREADS": "4"} and len(shares("cpu", None, 2)) == 1
    assert shares("cpu", 2, 1)[0].name == "cpu (4 threads)"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert shares("cpu", 2, 1)[1].environment == {"OMP_NUM_THREADS": "1"}
    with pytest.raises(BadInput, match="--workers is 0"):
        shares("cpu", 0, 1)


def test_shares_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def visible(*arguments: Any) -> list[str]:
        return [share.environment.get("CUDA_VISIBLE_DEVICES", "") for share in shares(*arguments)]

    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible("auto", None, 1) == ["0", "1", "2", "3"]
    assert visible("cuda", None, 2) == ["0,1", "2,3"] and visible("cuda", 6, 1) == ["0", "1", "2", "3", "0", "1"]
    assert visible("cuda:2", 2, 1) == ["2", "2"] and visible("cpu", 2, 1) == ["", ""]
    with pytest.raises(BadInput, match="ranks_per_trial is 5 and there are 4 GPUs"):
        shares("cuda", None, 5)
    with pytest.raises(BadInput, match="names one GPU"):
        shares("cuda:1", None, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-aa, MIG-bb,MIG-cc")
    assert visible("auto", None, 1) == ["MIG-aa", "MIG-bb", "MIG-cc"], "a worker for each slice"
    assert [share.name for share in shares("auto", 1, 1)] == ["cuda:MIG-aa"]
