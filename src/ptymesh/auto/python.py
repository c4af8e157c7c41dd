"""`ptymesh.reconstruct`: reconstruction in one call from Python, from a path alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from ptymesh.auto.data import described
from ptymesh.auto.deciding import decide
from ptymesh.auto.recipe_text import recipe_text
from ptymesh.distributed.joining import join
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.recipe.python_arguments import Stage
from ptymesh.recipe.schema import Recipe
from ptymesh.run import reconstruction as by_stages
from ptymesh.run.session import reconstruction
from ptymesh.sentences import quote

#: Options of a reconstruction that are top keys of a recipe.
_TOP = ("object", "probe", "precision", "seed", "layout", "memory_budget", "scratch", "auto")


def reconstruct(
    scan: Measurement | str | Path, stages: Sequence[Stage] | Stage | None = None, **options: Any
) -> Result:
    """Run all stages and return the result.

    Args:
        scan: the data, or the path of a file or the name of a sample.
        stages: engines with their options. None: if `scan` is a path, stages are found by trying, and the result's
            `recipe` says which, and why; otherwise the default stages.
        **options: as of `Reconstruction`; and `auto`, as in a recipe.

    Raises:
        BadInput: an option or the data cannot be used.
        Diverged: the run diverged.
    """
    if stages is not None or not isinstance(scan, str | Path):
        return by_stages.reconstruct(scan, stages, **options)
    raw, reasons = described(Path(scan))
    device = options.pop("device", "auto")
    if not isinstance(device, str | World):
        raise BadInput(f"device is {quote(device)}; give auto, cpu, cuda, cuda:N, or a World that was joined before.")
    if (modes := options.pop("probe_modes", None)) is not None:
        options["probe"] = {**dict(options.get("probe") or {}), "modes": modes}
    if (subpixel := options.pop("subpixel", None)) is not None:
        raw["positions"] = {"subpixel": subpixel}
    if unknown := sorted(options.keys() - set(_TOP)):
        raise BadInput(f"reconstruct has no option {unknown[0]}; it has {', '.join(_TOP)}, probe_modes and subpixel.")
    recipe = Recipe.parse({**raw, **{name: value for name, value in options.items() if value is not None}})
    with nullcontext(device) if isinstance(device, World) else join(device) as world:
        found = decide(recipe, world, reasons=reasons, write=False)
        with closing(reconstruction(found.recipe, world)) as recon:
            recon.loop(hold_out=found.recipe.hold_out).run()
            return recon.result(recipe_text(found.recipe, found.reasons))
