"""How many sweeps (run/cost_model.py) there are for questions and run together."""

from __future__ import annotations

import torch

from ptymesh.distributed.world import World
from ptymesh.measurement import Measurement
from ptymesh.run.cost_model import EpochCost, epoch_size, sweep_work
from ptymesh.run.device_pace import measure_pace

#: Work (cost_model.py) where nobody says, some 45 s on two cores of a slow machine; between so many sweeps.
WORK, FEWEST, MOST = 5.5e9, 400, 2200


def sweeps_of(scan: Measurement) -> int:
    """What can be afforded where nobody says."""
    return int(min(MOST, max(FEWEST, WORK / sweep_work(scan))))


def sweeps_in(time_s: float, scan: Measurement, world: World) -> int:
    """Rank 0's pace tells how many sweeps all ranks do in that time; everybody takes its word."""
    sweeps = 0.0
    if world.rank == 0:
        threads = world.size * (torch.get_num_threads() if world.device.type == "cpu" else 1)
        sweeps = time_s / measure_pace(scan.window, world.device).epoch_seconds(EpochCost(), epoch_size(scan), threads)
    (agreed,) = world.broadcast(torch.tensor([sweeps], dtype=torch.float64, device=world.device))
    return max(1, int(agreed))
