"""`python -m ptymesh.launcher.probe DEVICE BACKEND`: measurement of a rank of `ptymesh doctor`. Rank 0 prints JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ptymesh.distributed.child import prepare_process

#: Bytes of the timed all-reduces, and repetitions of each.
SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 24)
REPEATS = 30


def main(device: str, backend: str) -> None:
    """Check the sum over ranks once, then time all-reduces of each size."""
    prepare_process()
    import os

    import torch

    from ptymesh.distributed.devices import BACKEND
    from ptymesh.distributed.joining import join

    os.environ[BACKEND] = backend
    world = join(device)
    (total,) = world.sum(torch.tensor([float(world.rank)], device=world.device))
    expected = world.size * (world.size - 1) / 2
    if float(total) != expected:
        sys.exit(f"ptymesh: the sum of the ranks is {float(total)}, not {expected}.")
    rows = [timed(world, size) for size in SIZES]
    world.close()
    if world.rank == 0:
        print(json.dumps({"through": world.transport, "allreduce": rows}), flush=True)


def timed(world: Any, size: int) -> dict[str, float]:
    """Return the shortest time of an all-reduce in seconds, and the bandwidth of each link, 2 (R - 1) / R bytes / s."""
    import torch

    data = torch.zeros(size // 4, dtype=torch.float32, device=world.device)
    best = float("inf")
    for _ in range(REPEATS):
        world.barrier()
        began = time.perf_counter()
        float(world.sum(data)[0][0])  # reading a value waits for the device
        best = min(best, time.perf_counter() - began)
    return {"bytes": size, "seconds": best, "GB_per_s": 2 * (world.size - 1) / world.size * size / best / 1e9}


if __name__ == "__main__":
    main(*sys.argv[1:3])
