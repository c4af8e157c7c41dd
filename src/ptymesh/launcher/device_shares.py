"""Shares of this machine, GPUs and cores, for processes that work beside each other."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ptymesh.distributed.devices import device_for, visible_gpus
from ptymesh.errors import BadInput
from ptymesh.launcher.rank_processes import MOST_RANKS, cores


@dataclass(frozen=True)
class Share:
    """Share of this machine that one of several processes, or groups of them, gets.

    Attributes:
        device: cpu or cuda.
        name: for the records.
        environment: variables that restrict its process to the share.
    """

    device: str
    name: str
    environment: dict[str, str]


def share_devices(device: str, count: int | None, ranks: int, options: tuple[str, str]) -> list[Share]:
    """Return the share of this machine that each of several jobs gets that run at the same time.

    Each gets its share of the cores as threads, unless OMP_NUM_THREADS is set. Where there are more jobs than groups of
    GPUs, a group has several jobs.

    Args:
        device: auto, cpu, cuda or cuda:N.
        count: their number; None: one per GPU (or group of GPUs), 1 on CPUs.
        ranks: devices, or processes on CPUs, that each takes.
        options: names of `count` and of `ranks`, for messages.

    Raises:
        BadInput: a number is out of range, a device is not there, or there are too few GPUs for one.
    """
    if count is not None and not 1 <= count <= MOST_RANKS:
        raise BadInput(f"{options[0]} is {count}; give 1 to {MOST_RANKS}.")
    if not 1 <= ranks <= MOST_RANKS:
        raise BadInput(f"{options[1]} is {ranks}; give 1 to {MOST_RANKS}.")
    _, _, number = device.partition(":")
    chosen = device_for(device, 0).type
    gpus = [] if chosen == "cpu" else visible_gpus()
    if number and ranks > 1:
        raise BadInput(f"--device {device} names one GPU and {options[1]} is {ranks}; leave the number out.")
    if number:
        gpus = [gpus[int(number)]]
    if gpus and len(gpus) < ranks:
        raise BadInput(f"{options[1]} is {ranks} and there are {len(gpus)} GPUs; ask for {len(gpus)}.")
    groups = [gpus[k : k + ranks] for k in range(0, len(gpus) - ranks + 1, ranks)]
    together = count or len(groups) or 1
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores() // (together * ranks)))
    shares = []
    for one in range(together):
        environment = {"OMP_NUM_THREADS": threads}
        name = f"cpu ({threads} thread{'s' * (threads != '1')})"
        if groups:
            mine = ",".join(groups[one % len(groups)])
            environment["CUDA_VISIBLE_DEVICES"] = mine
            name = f"cuda:{mine}"
        shares.append(Share("cuda" if groups else "cpu", name, environment))
    return shares
