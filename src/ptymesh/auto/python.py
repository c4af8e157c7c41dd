"""`ptymesh.reconstruct`: reconstruction in one call from Python, from a path alone."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from ptymesh.auto.data import described
from ptymesh.auto.deciding import decide
from ptymesh.auto.recipe_text import recipe_text
from ptymesh.distributed.joining import join
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, Poor
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.recipe.python_arguments import Stage, stages_of
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import reconstruction
from ptymesh.run_folder.progress import show_progress
from ptymesh.sentences import quote, unknown_key

#: Options of a reconstruction that are top keys of a recipe.
_TOP = ("object", "probe", "optics", "precision", "seed", "layout", "memory_budget", "scratch", "auto")


def reconstruct(
    scan: Measurement | str | Path | Sequence[Measurement | str | Path],
    stages: Sequence[Stage] | Stage | None = None,
    progress: bool | None = None,
    strict: bool = False,
    **options: Any,
) -> Result:
    """Run all stages and return the result.

    Where the verdict on it (`Result.verdict`) is poor or failed, one line on standard error says so.

    Args:
        scan: the data, or the path of a file or the name of a sample; or a list of several.
        stages: engines, or dicts as in a recipe. None: if `scan` is a path, stages are found by trying, and the
            result's `recipe` says which, and why; otherwise the default stages.
        progress: None, a bar in a notebook and nothing elsewhere; True, a line per epoch where there is no notebook.
        strict: raise Poor, which holds the result, instead of that line.
        **options: as of `Reconstruction`; and `auto`, as in a recipe.

    Raises:
        BadInput: an option or the data cannot be used.
        Diverged: the residual left the numbers.
        Poor: the verdict is poor or failed, and strict is set.
    """
    if not isinstance(strict, bool):
        raise BadInput(f"strict is {quote(strict)}; give True or False.")
    if not isinstance(progress, bool | None):
        raise BadInput(f"progress is {quote(progress)}; give True, False or None.")
    if stages is None and isinstance(scan, str | Path):
        return _find_and_run_stages(Path(scan), progress, strict, options)
    stages_given = None if stages is None else stages_of(stages)
    _refuse_unknown_options(options, list(inspect.signature(Reconstruction).parameters)[1:])
    recon = Reconstruction(scan, **options)
    engines = recon.default_stages if stages_given is None else stages_given
    with show_progress(engines, progress if recon.world.rank == 0 else False) as recon.callbacks:
        for _ in recon.run(engines):
            pass
    return _refuse_or_warn(recon.result(), recon.world, strict)


def _find_and_run_stages(path: Path, progress: bool | None, strict: bool, options: dict[str, Any]) -> Result:
    """Return the result of stages that are found by trying; arguments as in `reconstruct`."""
    _refuse_unknown_options(options, [*_TOP, "device", "probe_modes", "subpixel"])
    raw, reasons = described(path)
    device = options.pop("device", "auto")
    if not isinstance(device, str | World):
        raise BadInput(f"device is {quote(device)}; give auto, cpu, cuda, cuda:N, or a World that was joined before.")
    if (modes := options.pop("probe_modes", None)) is not None:
        options["probe"] = {**dict(options.get("probe") or {}), "modes": modes}
    if (subpixel := options.pop("subpixel", None)) is not None:
        raw["positions"] = {"subpixel": subpixel}
    recipe = Recipe.parse({**raw, **{name: value for name, value in options.items() if value is not None}})
    with nullcontext(device) if isinstance(device, World) else join(device) as world:
        decision = decide(recipe, world, reasons=reasons, write=False)
        with closing(reconstruction(decision.recipe, world)) as recon:
            with show_progress(recon.stages, progress if world.rank == 0 else False) as callbacks:
                recon.loop(hold_out=decision.recipe.hold_out, callbacks=callbacks).run()
            return _refuse_or_warn(recon.result(recipe_text(decision.recipe, decision.reasons)), world, strict)


def _refuse_unknown_options(options: dict[str, Any], names: Sequence[str]) -> None:
    """Raise BadInput for an option that `reconstruct` does not take."""
    if unknown := sorted(options.keys() - set(names)):
        raise BadInput(unknown_key(unknown[0], ["progress", "strict", *names]))


def _refuse_or_warn(result: Result, world: World, strict: bool) -> Result:
    """Return the result; say on standard error, on the first rank, if its picture is not to be believed.

    Raises:
        Poor: it is not, and strict is set.
    """
    if result.verdict in ("poor", "failed"):
        sentence = f"the result is {result.verdict}: {result.attrs['verdict_sentence']}"
        if strict:
            raise Poor(f"{sentence[0].upper()}{sentence[1:]}.", result)
        if world.rank == 0:
            print(f"ptymesh: {sentence}.", file=sys.stderr, flush=True)
    return result
