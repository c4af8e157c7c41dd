"""Number of sweeps (units of work, planning/cost_model.py) for search and run together."""

from __future__ import annotations

import torch

from ptymesh.distributed.world import World
from ptymesh.measurement import Measurement
from ptymesh.planning.cost_model import EpochCost, epoch_size, sweep_work
from ptymesh.planning.device_pace import measure_pace

#: Work in pixels of planning/cost_model.py if nobody says how much: some 45 s on two cores of a slow machine.
WORK = 5.5e9
#: Least number of sweeps.
FEWEST = 400
#: Largest number of sweeps.
MOST = 2200


def default_sweeps(scan: Measurement) -> int:
    """Return the number of sweeps for a scan if nobody says how many."""
    return int(min(MOST, max(FEWEST, WORK / sweep_work(scan))))


def sweeps_in_time(time_s: float, scan: Measurement, world: World) -> int:
    """Return how many sweeps all ranks do in a time, at the pace that rank 0 measures. Collective.

    Args:
        time_s: seconds.
        scan: the data.
        world: the ranks.
    """
    sweeps = 0.0
    if world.rank == 0:
        threads = world.size * (torch.get_num_threads() if world.device.type == "cpu" else 1)
        sweeps = time_s / measure_pace(scan.window, world.device).epoch_seconds(EpochCost(), epoch_size(scan), threads)
    (agreed,) = world.broadcast(torch.tensor([sweeps], dtype=torch.float64, device=world.device))
    return max(1, int(agreed))
