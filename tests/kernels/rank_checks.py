"""A rank of several that have pretended devices, joined as NCCL joins GPUs.

    python rank_checks.py CHECK RANK SIZE FILE

test_ranks_of_gpus.py starts them, and compares what they say.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from pretended import DEVICE, Pretended  # noqa: E402
from queued import NAME, register  # noqa: E402
from torch import Tensor  # noqa: E402

from ptymesh.distributed.layouts.layout import Replicated  # noqa: E402
from ptymesh.distributed.layouts.tiled import Tiled  # noqa: E402
from ptymesh.distributed.world import Ranks, Solo  # noqa: E402
from ptymesh.engines import ENGINES  # noqa: E402
from ptymesh.physics.backend import Backend  # noqa: E402
from ptymesh.problem import Problem  # noqa: E402
from ptymesh.run.loop import Loop  # noqa: E402
from ptymesh.run.state import RunState  # noqa: E402
from toy import make, share  # noqa: E402


def moved(value: Any, device: Pretended) -> Any:
    """An estimate or a model on the device."""
    tensors = {f.name: getattr(value, f.name) for f in fields(value) if isinstance(getattr(value, f.name), Tensor)}
    return replace(value, **{name: device.far(tensor) for name, tensor in tensors.items()})


def digest(device: Pretended, engine: str, layout: str, size: int) -> str:
    """Of what an engine ends with, the whole object and all positions."""
    toy = make(views=8, window=(8, 12), uneven=True)
    world = Ranks(DEVICE) if size > 1 else Solo(DEVICE)
    scan = toy.measurement
    owners = Replicated(world, scan.positions) if layout == "replicated" else Tiled(world, scan.positions, scan.window)
    problem = Problem(moved(toy.model, device), scan, owners, toy.truth.object.dtype)
    problem.backend = Backend()
    state = RunState(moved(share(toy.start(), problem), device))
    options: dict[str, Any] = {"epochs": 1}
    if ENGINES[engine].model_fields["batch"].annotation is not type(None):
        options["batch"] = 4
    Loop(problem, state, [ENGINES[engine](**options)], seed=7).run()
    whole = problem.layout.gather_whole(state.estimate.object, state.estimate)
    found = hashlib.sha256()
    for tensor in (whole, state.estimate.probe):
        found.update(tensor.cpu().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    check, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with Pretended(late=True) as device:
        if size > 1:
            register()
            dist.init_process_group(NAME, init_method=f"file://{sys.argv[4]}", rank=rank, world_size=size)
        if check == "host":
            dist.all_reduce(torch.ones(2))
        elif check == "complex":
            dist.group.WORLD.allreduce([device.far(torch.ones(2, dtype=torch.complex64))])
        elif check == "order":
            one, two = device.far(torch.ones(2)), device.far(torch.ones(3))
            for tensor in (one, two) if rank else (two, one):
                dist.all_reduce(tensor)
            print(one.tolist())
        elif check == "late":
            one = device.far(torch.full((2,), float(rank + 1)))
            dist.all_reduce(one)
            print(one.memory.tolist(), one.tolist())
        else:
            for engine in sys.argv[5].split(","):
                for layout in ("replicated", "tiled"):
                    print(engine, layout, digest(device, engine, layout, size), flush=True)
        device.finish()
        if size > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
