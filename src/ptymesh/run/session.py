"""From a recipe to a result: what `ptymesh run` and `ptymesh resume` do on every rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ptymesh.errors import Diverged, Interrupted
from ptymesh.io import checkpoint, load_measurement
from ptymesh.io.results import Result
from ptymesh.parallel.world import World, join
from ptymesh.run.batches import draw
from ptymesh.run.recipe import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.reports import Callback, RunInfo
from ptymesh.run.signals import StopSignal


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the result (its object as far as this rank holds it) and where it was written."""

    result: Result
    path: Path


def run_recipe(
    recipe: Recipe,
    *,
    device: str = "auto",
    layout: str = "replicated",
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Runs a recipe on the ranks that this process belongs to, from the start or from its checkpoint.

    Raises BadInput, Diverged (the last good checkpoint stays) and Interrupted (after a checkpoint).
    """
    world = join(device)
    try:
        return _run(recipe, world, layout, resume, callbacks if world.rank == 0 else ())
    finally:
        world.close()


def _run(recipe: Recipe, world: World, layout: str, resume: bool, callbacks: Sequence[Callback]) -> Outcome:
    out = Path(recipe.output.dir)
    saved = checkpoint.load(out / "checkpoint") if resume else None
    with closing(_reconstruction(recipe, world, layout, saved)) as recon:
        return _carry_out(recipe, recon, out, resume, callbacks)


def _carry_out(
    recipe: Recipe, recon: Reconstruction, out: Path, resume: bool, callbacks: Sequence[Callback]
) -> Outcome:
    folder = out / "checkpoint"
    for callback in callbacks:
        callback.start(_info(recipe, recon, out, resume))

    def save() -> None:
        recon.state.save(folder, loop.problem, {"recipe": recipe.to_yaml(), "seed": recipe.seed})
        for callback in callbacks:
            callback.saved(folder)

    due = _Clock(recipe.output.checkpoint_every, recipe.output.checkpoint_minutes)
    try:
        with StopSignal() as stop:
            loop = recon.loop(
                hold_out=recipe.hold_out, callbacks=callbacks, stop=lambda: stop.requested, save=save, due=due
            )
            loop.run()
    except (Interrupted, Diverged) as ending:
        for callback in callbacks:
            callback.finish("interrupted" if isinstance(ending, Interrupted) else "diverged")
        raise
    path = out / "result.h5"
    result = recon.save(path, recipe.to_yaml())
    for callback in callbacks:
        callback.saved(path)
        callback.finish("done")
    return Outcome(result, path)


def _reconstruction(recipe: Recipe, world: World, layout: str, saved: checkpoint.Checkpoint | None) -> Reconstruction:
    failure, scan = None, None
    try:
        scan = load_measurement(recipe.data, recipe.positions)
    except Exception as error:
        failure = error
    world.all_well(failure, "reading the data")
    assert scan is not None
    recon = Reconstruction(
        scan,
        object=recipe.object,
        probe=recipe.probe,
        subpixel=recipe.positions.subpixel,
        precision=recipe.precision,
        seed=recipe.seed,
        device=world,
        layout=layout,
        memory_budget=recipe.memory_budget,
        scratch=recipe.scratch or _existing(recipe.output.dir),
        saved=saved,
    )
    recon.stages = [stage.model_copy(deep=True) for stage in recipe.stages]
    return recon


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: what is staged has no name, and needs no folder made."""
    return next(found for found in (folder.absolute(), *folder.absolute().parents) if found.is_dir())


def _info(recipe: Recipe, recon: Reconstruction, out: Path, resumed: bool) -> RunInfo:
    estimate, scan = recon.state.estimate, recon.scan
    height, width = estimate.extent
    return RunInfo(
        stages=[(s.name, s.epochs, len(draw(scan.positions, s.batch, recipe.seed, 0))) for s in recon.stages],
        views=scan.views,
        window=scan.window,
        object_shape=(len(estimate.object), height, width),
        modes=len(estimate.probe),
        ranks=recon.world.size,
        device=str(recon.world.device),
        precision=recipe.precision,
        out=out,
        resumed=resumed,
        done_epochs=recon.state.done_epochs,
        patterns=recon.problem.patterns.where(),
    )


class _Clock:
    """Whether a checkpoint is due: every so many epochs, and when so many minutes have passed since the last one."""

    def __init__(self, epochs: int, minutes: float) -> None:
        self.epochs, self.seconds, self.last = epochs, 60 * minutes, time.monotonic()

    def __call__(self, done: int) -> bool:
        if done % self.epochs and time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True
