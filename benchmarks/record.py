"""What every file in benchmarks/results begins with: the machine, and when it was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ptymesh.distributed.devices import device_for
from ptymesh.run import machine


def about(device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """Processor, cores, threads, versions, how many cores others keep busy now, and the time (UTC)."""
    here = machine.describe(device_for(device, 0), threads or torch.get_num_threads())
    here["cores_busy_with_others"] = round(machine.load_of_others()[0], 2)
    return {"machine": here, "started": datetime.now(UTC).isoformat(timespec="seconds")}


def write(path: Path | None, found: dict[str, Any]) -> None:
    """As JSON, if a file was asked for."""
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
