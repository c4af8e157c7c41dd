"""A pool of gloo ranks that lives for the whole test session, so that a multi-rank test costs milliseconds.

Functions travel as (file, name), so that they may live in any test file.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import warm

#: Longest that one call may take on the pool.
PATIENCE_S = 120


class Pool:
    """`size` processes in one process group, with subgroups of the first 1, 2, ... of them; started at first use."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self.starts = size, folder, 0
        self.pipes, self.processes = [], []

    def _start(self) -> None:
        context = warm.context()
        self.starts += 1
        store = str(self.folder / f"store{self.starts}")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, ranks: int, function: Callable, *args: Any) -> list[Any]:
        """function(world, *args) on each of `ranks` ranks; returns their values in order, raises the first failure."""
        if not self.pipes:
            self._start()
        where = (function.__code__.co_filename, function.__name__)
        for pipe in self.pipes[:ranks]:
            pipe.send((ranks, where, args))
        answers = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(PATIENCE_S):
                self.close()
                raise TimeoutError(f"rank {rank} of {ranks} did not finish {where[1]} in {PATIENCE_S} s")
            answers.append(pipe.recv())
        for rank, (well, value) in enumerate(answers):
            if not well:
                raise AssertionError(f"rank {rank} of {ranks} failed in {where[1]}:\n{value}")
        return [value for _, value in answers]

    def close(self) -> None:
        """Ends the processes; the next `run` starts new ones."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()
        self.pipes, self.processes = [], []


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from ptymesh.distributed.world import Ranks, Solo

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {n: dist.new_group(list(range(n))) for n in range(2, size + 1)}
    modules: dict[str, ModuleType] = {}
    while True:
        try:
            ranks, (path, name), args = pipe.recv()
        except EOFError:
            return
        try:
            world = Solo() if ranks == 1 else Ranks(group=groups[ranks])
            pipe.send((True, getattr(_module(path, modules), name)(world, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _module(path: str, modules: dict[str, ModuleType]) -> ModuleType:
    if path not in modules:
        name = "ranked_" + Path(path).stem
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        modules[path] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[path])
    return modules[path]
