"""ptymesh tune: search for the best recipe; ptymesh tune report: figures of the search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import folder


def command(
    file: Annotated[Path, typer.Argument(metavar="TUNE.yaml|report", help="What to search; or the word report.")],
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY_DIR]", help="After report: the folder of a study.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes on this machine; default one per GPU, 1 on CPUs.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    trials: Annotated[int | None, typer.Option(metavar="N", help="Trials in all, instead of the file's.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe that is searched.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Folder of the study, instead of the file's.")
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Help with a study that runs already, from this or another machine.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Forget a study that is in the folder.")] = False,
) -> None:
    """Search a space of recipes by many reconstructions, each on a device of its own.

    The same command goes on with a study that was stopped. `ptymesh tune report STUDY_DIR` draws importance, parallel
    coordinates and history of a study, finished or not.
    """
    from ptymesh.errors import BadInput
    from ptymesh.tune.offered import need_optuna

    need_optuna()
    if str(file) == "report" and (study is not None or not file.is_file()):
        _report(study)
        return
    if study is not None:
        raise BadInput(f"{study} is one argument too many; give a tune file, or: report STUDY_DIR.")
    from ptymesh.tune.options import load_tuning
    from ptymesh.tune.session import run_study

    tuning = load_tuning(file, out=out, overrides=set_ or (), trials=trials)
    outcome = run_study(tuning, workers=workers, device=device, join=join, force=force)
    if outcome is None:
        return
    for note in outcome.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"Best: trial {outcome.best.number}, {outcome.best.value:.6g}: {outcome.folder / 'best.yaml'}")
    typer.echo(f"Its reconstruction: {outcome.path}; figures of the search: ptymesh tune report {outcome.folder}")


def _report(study: Path | None) -> None:
    from ptymesh.errors import BadInput
    from ptymesh.tune.report import write_report

    if study is None:
        raise BadInput("tune report needs the folder of a study; give the output folder of ptymesh tune.")
    report = write_report(study)
    for line in report.lines:
        typer.echo(line)
    typer.echo(f"Figures: {' '.join(str(path) for path in report.paths)}")
