"""ptymesh slurm: job script that writes a checkpoint before its time is up, is requeued, and resumes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import folder

#: Seconds before the wall time at which the job is signalled to write its checkpoint.
WARNING_S = 300

#: Pattern of names of partitions and accounts; other characters could add options or lines to the script.
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]*")

#: Pattern of an image as Podman names it: with a tag, which distinguishes it from a command.
TAGGED = re.compile(r"[a-z0-9][a-z0-9._/-]*(?::[0-9]+/[a-z0-9._/-]+)?:[A-Za-z0-9_][A-Za-z0-9_.-]*")

#: Podman's command, such that ranks see Slurm's variables, each other, the network and the job's folder as they would
#: outside. SIGUSR1 is passed on to ptymesh, and podman exits with ptymesh's status.
PODMAN = (
    "podman run --rm --env-host --network=host --ipc=host --pid=host --security-opt=label=disable "
    '--volume="$PWD:$PWD" --workdir="$PWD" '
)

#: Job script with names in braces in place of what differs.
SCRIPT = Path(__file__).with_name("slurm.sh")


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
        str | None,
        typer.Option(metavar="IMAGE", help="Apptainer's FILE.sif, Podman's NAME:TAG, or what stands before ptymesh."),
    ] = None,
    interface: Annotated[str | None, typer.Option(metavar="NAME", help="Network interface between nodes.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Output folder, instead of the recipe's.")
    ] = None,
) -> None:
    """Print a Slurm job script for a recipe: `ptymesh slurm recipe.yaml > job.sh`, then `sbatch job.sh`."""
    from ptymesh.errors import BadInput
    from ptymesh.io.checkpoint.manifests import MANIFEST
    from ptymesh.recipe.schema import load_recipe
    from ptymesh.run_folder.start_record import STARTED

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
    for name, option_value in (("--partition", partition), ("--account", account)):
        if option_value is not None and not PLAIN.fullmatch(option_value):
            raise BadInput(
                f"{name} is {option_value!r}; give a name of letters, digits and any of _ . , : @ + - alone."
            )
    loaded = load_recipe(recipe, (), out)
    folder = loaded.output.dir
    options = "--device " + ("cuda " if gpus_per_node else "cpu ")
    if interface:
        options += f"--interface {word('--interface', interface)} "
    resources = [f"#SBATCH --gpus-per-node={gpus_per_node}\n"] if gpus_per_node else []
    resources += [f"#SBATCH --cpus-per-task={cpus_per_task}\n"] if cpus_per_task else []
    accounts = [
        f"#SBATCH --{name}={value}\n" for name, value in (("partition", partition), ("account", account)) if value
    ]
    typer.echo(
        SCRIPT.read_text(encoding="utf-8").format(
            name=re.sub(r"[^\w.-]", "_", recipe.stem, flags=re.ASCII),
            nodes=nodes,
            tasks=tasks,
            resources="".join(resources),
            time=time,
            warning=WARNING_S,
            account="".join(accounts),
            checkpoint=path("The output folder", folder / "checkpoint" / MANIFEST),
            started=path("The output folder", folder / STARTED),
            container=within(container, gpus_per_node),
            # since Slurm 22.05, srun does not inherit it from the job
            cores=f"--cpus-per-task={cpus_per_task} " if cpus_per_task else "",
            recipe=path("The recipe's path", recipe),
            out=path("The output folder", folder),
            options=options,
        ),
        nl=False,
    )


def seconds(time: str) -> int:
    """Return the seconds of a wall time in Slurm's notations: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S.

    Raises:
        BadInput: it is in none of them.
    """
    from ptymesh.errors import BadInput

    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time, re.ASCII)
    if not match:
        raise BadInput(f"--time is {time!r}; give it as HH:MM:SS or D-HH:MM:SS.")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, secs = [*parts, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + secs
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def word(name: str, value: str) -> str:
    """Return a value quoted as one word of the script.

    Args:
        name: of the option, for messages.
        value: its value.

    Raises:
        BadInput: the value contains unprintable characters.
    """
    from ptymesh.errors import BadInput

    if not value.isprintable():
        raise BadInput(f"{name} is {value!r}; give one without line breaks and other characters that do not print.")
    return shlex.quote(value)


def path(name: str, value: Path) -> str:
    """Return a path quoted as one word of the script that cannot be mistaken for an option.

    Raises:
        BadInput: the path contains unprintable characters.
    """
    return word(name, f"./{value}" if str(value).startswith("-") else str(value))


def within(container: str | None, gpus: int) -> str:
    """Return the words before `ptymesh` in the job: none, Apptainer or Podman with an image, or words as given.

    Args:
        container: image or words.
        gpus: number of GPUs on a node.

    Raises:
        BadInput: the words cannot be separated, or contain unprintable characters.
    """
    from ptymesh.errors import BadInput

    if not container:
        return ""
    try:
        words = shlex.split(container)
    except ValueError as error:
        raise BadInput(f"--container is {container!r} ({error}); close every quotation mark.") from error
    if len(words) == 1 and (words[0].endswith((".sif", ".img")) or "://" in words[0]):
        words = ["apptainer", "exec", *(["--nv"] if gpus else []), *words]
    elif len(words) == 1 and TAGGED.fullmatch(words[0]):
        return f"{PODMAN}{'--device=nvidia.com/gpu=all ' if gpus else ''}{words[0]} "
    return "".join(word("--container", argument) + " " for argument in words)
