"""ptymesh orient: orientation of the detector relative to the scan."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptymesh.cli.launching import Settings, folder
from ptymesh.cli.quantities import parse_length
from ptymesh.printable import finite

if TYPE_CHECKING:
    from ptymesh.tune.orient import Oriented


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="Data, geometry and probe, as far as known.")],
    c10: Annotated[
        str,
        typer.Option(
            metavar="SIGN|METRES",
            help="What is known of C10 (= -defocus): recipe (the recipe's probe is right about its sign), negative, "
            "positive, unknown; or values to try, such as -20e-6,-14e-6,-10e-6.",
        ),
    ] = "recipe",
    phase: Annotated[
        str | None, typer.Option(metavar="bright|dark", help="Known sign of the phase of features in the object.")
    ] = None,
    rotation_step: Annotated[
        float | None,
        typer.Option(metavar="DEGREES", help="Of the rotations tried; 0: none; default 15 for electrons, else 0."),
    ] = None,
    views: Annotated[int, typer.Option(metavar="N", help="Views, in the middle of the scan.")] = 300,
    crop: Annotated[int | None, typer.Option(metavar="N", help="Detector pixels; default where the light is.")] = None,
    epochs: Annotated[int, typer.Option(metavar="N", help="Of each reconstruction.")] = 4,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes on this machine; default one per GPU, 1 on CPUs.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Keep the studies in this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Find how the detector's axes lie to those of the scan, whatever the recipe says of it.

    Short reconstructions of a part of the data, in every orientation; held-out residuals decide. Prints the lines that
    belong into the recipe, for both twins where nothing tells them apart.
    """
    import sys

    from ptymesh.errors import BadInput
    from ptymesh.tune.offered import need_optuna

    need_optuna()
    from ptymesh.recipe.schema import raw_recipe
    from ptymesh.tune.orient import Crop, orient

    if phase not in (None, "bright", "dark"):
        raise BadInput(f"--phase is {phase!r}; give bright or dark.")
    if views < 20:
        raise BadInput(f"--views is {views}; give at least 20.")
    outcome = orient(
        raw_recipe(recipe, set_ or ()),
        crop=Crop(views=views, crop=crop, epochs=epochs),
        rotation_step_deg=rotation_step,
        c10=_c10(c10),
        phase=phase,  # type: ignore[arg-type] # checked above
        workers=workers,
        device=device,
        out=out,
        quiet=json or not sys.stdout.isatty(),
    )
    if json:
        from json import dumps

        typer.echo(dumps(_summary(outcome), indent=2))
    else:
        _say(outcome)


def _c10(text: str) -> Any:
    """Return a keyword as it is, or a list of metres."""
    from ptymesh.errors import BadInput

    if text in ("recipe", "negative", "positive", "unknown"):
        return text
    try:
        return [parse_length(part) for part in text.split(",")]
    except typer.BadParameter as error:
        raise BadInput(
            f"--c10 is {text!r}; give recipe, negative, positive, unknown, or metres such as -20e-6,-10e-6 or '-20 um'."
        ) from error


def _say(outcome: Oriented) -> None:
    """Print the orientation and the lines for the recipe."""
    import yaml

    height, width = outcome.window
    typer.echo(f"{outcome.trials} reconstructions of {outcome.views} views of {height} x {width} pixels.")
    typer.echo(f"Best: {outcome.best} (held-out residual {outcome.residual:.5f}).")
    typer.echo(f"Next: {outcome.second} ({outcome.second_residual:.5f}).")
    if isfinite(outcome.errors):
        distance = f"the margin is {outcome.margin:.1%}, {outcome.errors:.1f} standard errors"
        typer.echo(f"Confidence: {outcome.confidence}; {distance}.")
    else:
        typer.echo(
            "Confidence: none; the held-out views are too few, or do not differ, so that it cannot be told which "
            "orientation is right: scan more views, or hold what is known of the sample against the reconstruction."
        )
    if outcome.settled:
        typer.echo(f"Twin: {outcome.twin}, with the opposite defocus; ruled out by {outcome.settled}.")
    else:
        typer.echo("Twin: undecided; tell the sign of the defocus (--c10) or of the phase (--phase).")
    typer.echo("")
    typer.echo(yaml.safe_dump(outcome.lines(), sort_keys=False).rstrip())
    if not outcome.settled:
        typer.echo("\n# or, with the opposite defocus, its twin:\n")
        typer.echo(yaml.safe_dump(outcome.lines(outcome.twin), sort_keys=False).rstrip())


def _summary(outcome: Oriented) -> dict[str, object]:
    """Return the orientation as plain Python objects, ready for JSON."""
    return {
        "best": outcome.best.settings(),
        "twin": outcome.twin.settings(),
        "second": outcome.second.settings(),
        "residual": outcome.residual,
        "second_residual": outcome.second_residual,
        "twin_residual": finite(outcome.twin_residual),
        "margin": finite(outcome.margin),
        "standard_errors": finite(outcome.errors),
        "confidence": outcome.confidence,
        "settled_by": outcome.settled,
        "c10_m": outcome.c10_m,
        "recipe": outcome.lines(),
        "twin_recipe": outcome.lines(outcome.twin),
        "reconstructions": outcome.trials,
        "views": outcome.views,
        "window": list(outcome.window),
    }
