"""ptymesh slurm: a job script that checkpoints before its time is up, asks to be requeued, and goes on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

#: Seconds before the wall time at which the job is told to write its checkpoint.
WARNING_S = 300

SCRIPT = """\
#!/bin/bash
# Written by ptymesh slurm. Submit it with: sbatch THIS_FILE
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
{resources}#SBATCH --time={time}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.txt
{account}
# One task per rank: ptymesh reads rank and size from what srun sets. Ranks whose peer has died end by themselves; Slurm
# must not end those that are leaving with status 75.
if [ -e {checkpoint} ]; then
    srun --kill-on-bad-exit=0 {container}ptymesh resume {out} {options}&
else
    srun --kill-on-bad-exit=0 {container}ptymesh run {recipe} --out {out} {options}&
fi
step=$!

# {warning} s before the end of the job: every rank writes its part of a checkpoint and leaves with status 75.
trap 'kill -USR1 "$step" 2>/dev/null' USR1 TERM

# A signal ends the waiting, not the step; of one that has ended, bash remembers how.
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
done
wait "$step"
status=$?

if [ "$status" -eq 75 ]; then
    echo "Checkpoint written; this job goes back into the queue."
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
"""


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(metavar="N", help="GPUs, and ranks, on each (0: CPU ranks).")] = 1,
    ranks_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Ranks on each node; default: one per GPU, or one.")
    ] = None,
    time: Annotated[str, typer.Option(metavar="HH:MM:SS", help="Wall time of one turn in the queue.")] = "04:00:00",
    cpus_per_task: Annotated[int | None, typer.Option(metavar="N", help="Cores for each rank.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Partition.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Account.")] = None,
    container: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Apptainer image, or what stands before ptymesh.")
    ] = None,
    interface: Annotated[str | None, typer.Option(metavar="NAME", help="Network interface between nodes.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder, instead of the recipe's.")] = None,
) -> None:
    """Print a Slurm job script for a recipe: `ptymesh slurm recipe.yaml > job.sh`, then `sbatch job.sh`."""
    from ptymesh.errors import BadInput
    from ptymesh.run.recipe import load_recipe

    for name, value, least in (
        ("--nodes", nodes, 1),
        ("--gpus-per-node", gpus_per_node, 0),
        ("--ranks-per-node", ranks_per_node, 1),
        ("--cpus-per-task", cpus_per_task, 1),
    ):
        if value is not None and value < least:
            raise BadInput(f"{name} is {value}; give {least} or more.")
    if seconds(time) <= 2 * WARNING_S:
        raise BadInput(f"--time is {time}; give more than {2 * WARNING_S // 60} minutes: a checkpoint needs some.")
    tasks = ranks_per_node or gpus_per_node or 1
    if gpus_per_node and tasks > gpus_per_node:
        raise BadInput(
            f"--ranks-per-node is {tasks} for {gpus_per_node} GPUs on each node; leave it out, one rank per GPU."
        )
    loaded = load_recipe(recipe, (), out)
    folder = loaded.output.dir
    options = "--device " + ("cuda " if gpus_per_node else "cpu ")
    if interface:
        options += f"--interface {shlex.quote(interface)} "
    resources = [f"#SBATCH --gpus-per-node={gpus_per_node}\n"] if gpus_per_node else []
    resources += [f"#SBATCH --cpus-per-task={cpus_per_task}\n"] if cpus_per_task else []
    accounts = [
        f"#SBATCH --{name}={value}\n" for name, value in (("partition", partition), ("account", account)) if value
    ]
    typer.echo(
        SCRIPT.format(
            name=re.sub(r"[^\w.-]", "_", recipe.stem),
            nodes=nodes,
            tasks=tasks,
            resources="".join(resources),
            time=time,
            warning=WARNING_S,
            account="".join(accounts),
            checkpoint=shlex.quote(str(folder / "checkpoint" / "manifest.json")),
            container=within(container, gpus_per_node),
            recipe=shlex.quote(str(recipe)),
            out=shlex.quote(str(folder)),
            options=options,
        ),
        nl=False,
    )


def seconds(time: str) -> int:
    """Slurm's notations of a wall time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S. Raises BadInput."""
    from ptymesh.errors import BadInput

    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not found:
        raise BadInput(f"--time is {time!r}; give it as HH:MM:SS or D-HH:MM:SS.")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, secs = [*parts, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + secs
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def within(container: str | None, gpus: int) -> str:
    """What stands before `ptymesh` in the job: nothing, a command as it was given, or apptainer with an image."""
    if not container:
        return ""
    if container.endswith((".sif", ".img")) or "://" in container:
        return f"apptainer exec {'--nv ' if gpus else ''}{shlex.quote(container)} "
    return container + " "
