"""ptymesh demo: simulation, reconstruction and figures of a scan, and comparison with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh import stopping
from ptymesh.cli.compare import draw_comparison
from ptymesh.cli.launching import LaunchOptions, folder, refuse_ranks

if TYPE_CHECKING:
    from ptymesh.compare import Comparison

RECIPE = """\
# Written by ptymesh demo. Change what you like, then: ptymesh run {recipe} --out second
data:
  path: {scan}
probe:
  start: file            # the beam as designed; its defocus is 10 % wrong
stages:
  - {{engine: rpie, epochs: 40, batch: 32}}
output:
  dir: {out}
"""
VIEWS, WINDOW = 200, 64


def command(
    ranks: Annotated[int, typer.Option(metavar="N", help="Processes to start on this machine.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", parser=folder, help="Folder for everything that is made.")] = Path(
        "demo"
    ),
) -> None:
    """Simulate a scan, reconstruct it, draw it, and compare it with the truth."""
    from ptymesh.cli.running import check_folder, execute, holding_output_folder, refuse_to_overwrite
    from ptymesh.errors import BadInput
    from ptymesh.files import replacing
    from ptymesh.recipe.schema import load_recipe
    from ptymesh.run.simulate_file import write
    from ptymesh.simulate import checked

    refuse_ranks("demo")
    check_folder(out)
    refuse_to_overwrite(out, force=True)
    recipe = out / "recipe.yaml"
    if out.exists() and any(out.iterdir()) and not _is_demo_recipe(recipe):
        raise BadInput(f"{out} holds files that are not of a demo; give another folder with --out.")
    with holding_output_folder(out):
        with replacing(recipe) as temporary:
            temporary.write_text(RECIPE.format(recipe=recipe, scan="scan.cxi", out=out), encoding="utf-8")
        options = checked(kind="xray", views=VIEWS, window=WINDOW, seed=1)
        _, truth = write(options, out / "scan.cxi", force=True)
        arguments = ["run", str(recipe), "--device", "auto", "--out", str(out), "--force"]
        execute(load_recipe(recipe, out=out), arguments, LaunchOptions(ranks), resume=False)
        stopping.at_once(f"Stopped before the comparison was drawn; the result is {out / 'result.h5'}.", 0)
        comparison = _compare(out / "result.h5", truth, out / "comparison.png")
    typer.echo("")
    typer.echo(
        f"Simulated {VIEWS} views of a test chart and reconstructed them on {ranks} rank{'s' * (ranks > 1)}: "
        f"the object differs from the truth by {comparison.nrmse:.1%} (comparison.png)."
    )
    typer.echo(f"Look at {out / 'overview.png'}; the numbers are in {out / 'result.h5'}, the settings in {recipe}.")
    typer.echo(f"Next: edit {recipe} and `ptymesh run {recipe} --out second`, or `ptymesh inspect` your own data.")


def _is_demo_recipe(recipe: Path) -> bool:
    """Return True if a file is a recipe that the demo has written."""
    return recipe.is_file() and recipe.read_bytes().startswith(RECIPE.partition(".")[0].encode())


def _compare(result: Path, truth: Path, picture: Path) -> Comparison:
    from ptymesh.compare import compare_results
    from ptymesh.io.results import Result

    comparison = compare_results(Result.load(result), Result.load(truth))
    draw_comparison(comparison, picture, ("reconstruction", "truth"))
    return comparison
