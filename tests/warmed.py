"""What a process forked by warm.py finds imported: torch, numba, the package with its commands. No threads in here."""

# ruff: noqa: E402
import contextlib
import gc

gc.disable()  # until all is imported: it stays, and forked processes shall not go through it, and so copy it

# isort: split
import torch
import torch.distributed.elastic.multiprocessing

import ptymesh.cli.main
import ptymesh.cli.running
import ptymesh.diagnosis.report
import ptymesh.engines
import ptymesh.io
import ptymesh.launcher.rank_processes
import ptymesh.recipe.schema
import ptymesh.run.loop
import ptymesh.run.session
import ptymesh.run_folder.callbacks
import ptymesh.run_folder.figures

torch.set_num_threads(1)
# what takes Typer as long as a short run, from one call to the next in a process
for command in ptymesh.cli.main.COMMANDS:
    ptymesh.cli.main.load_command(command)
with contextlib.suppress(ImportError):  # GPUs do without it
    import numba

    import ptymesh.kernels.cpu.backend
    from warm_kernels import read_kernels

    # numba's own tables of types, which the first function fills
    numba.njit(numba.float64(numba.float64[::1]))(lambda x: x[0])
    read_kernels()

with contextlib.suppress(ImportError):  # an extra; what is started as a program of its own must not be imported
    import ptymesh.tune.objectives
    import ptymesh.tune.places
    import ptymesh.tune.storage

gc.freeze()
gc.enable()
