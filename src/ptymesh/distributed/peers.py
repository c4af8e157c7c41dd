"""`python -m ptymesh.distributed.peers`: times copies between every two CUDA devices; prints JSON.

It runs as a separate process, since a broken path between two GPUs hangs the process that uses it.
"""

from __future__ import annotations

import json
import sys
import time

#: Bytes of the copies that measure bandwidth and latency.
LARGE, SMALL = 64 << 20, 4
REPEATS = 5


def main() -> None:
    """Print one line for each pair of devices; if it hangs, the pair after the last line is at fault."""
    import torch

    count = torch.cuda.device_count()
    for source in range(count):
        for target in range(count):
            if source == target:
                continue
            print(json.dumps({"from": source, "to": target}), file=sys.stderr, flush=True)
            row = {
                "from": source,
                "to": target,
                "direct": torch.cuda.can_device_access_peer(source, target),
                "GB_per_s": LARGE / copied(source, target, LARGE) / 1e9,
                "latency_us": copied(source, target, SMALL) * 1e6,
            }
            print(json.dumps(row), flush=True)


def copied(source: int, target: int, size: int) -> float:
    """Return the shortest time of a few copies between two devices, in seconds.

    Args:
        source: number of the CUDA device that is read.
        target: number of the one that is written to.
        size: bytes of a copy.

    Raises:
        RuntimeError: the target does not receive what was sent.
    """
    import torch

    data = torch.full((size,), 7, dtype=torch.uint8, device=f"cuda:{source}")
    target_tensor = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{target}")
    best = float("inf")
    for _ in range(REPEATS):
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        began = time.perf_counter()
        target_tensor.copy_(data)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        best = min(best, time.perf_counter() - began)
    if not bool((target_tensor == 7).all()):
        raise RuntimeError(f"what cuda:{target} received from cuda:{source} is not what was sent")
    return best


if __name__ == "__main__":
    main()
