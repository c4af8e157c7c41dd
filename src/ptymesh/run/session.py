"""From a recipe to a result: what `ptymesh run` and `ptymesh resume` do on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """What came of a run: the result (on every rank) and where it was written."""

    result: Result
    path: Path


def run_recipe(
    recipe: Recipe, *, device: str = "auto", resume: bool = False, callbacks: Sequence[Callback] = ()
) -> Outcome:
    """Runs a recipe on the ranks that this process belongs to, from the start or from its checkpoint.

    Raises BadInput, Diverged (the last good checkpoint stays) and Interrupted (after a checkpoint).
    """
    world = join(device)
    try:
        return _run(recipe, world, resume, callbacks if world.rank == 0 else ())
    finally:
        world.close()


def _run(recipe: Recipe, world: World, resume: bool, callbacks: Sequence[Callback]) -> Outcome:
    out = Path(recipe.output.dir)
    folder = out / "checkpoint"
    recon = reconstruction(recipe, world, checkpoint.load(folder) if resume else None)
    for callback in callbacks:
        callback.start(_info(recipe, recon, out, resume))

    def save() -> None:
        recon.state.save(folder, recon.problem, {"recipe": recipe.to_yaml(), "seed": recipe.seed})
        for callback in callbacks:
            callback.saved(folder)

    due = _Clock(recipe.output.checkpoint_every, recipe.output.checkpoint_minutes)
    try:
        with StopSignal() as stop:
            recon.loop(
                hold_out=recipe.hold_out, callbacks=callbacks, stop=lambda: stop.requested, save=save, due=due
            ).run()
    except (Interrupted, Diverged) as ending:
        for callback in callbacks:
            callback.finish("interrupted" if isinstance(ending, Interrupted) else "diverged")
        raise
    result = recon.result(recipe.to_yaml())
    path = out / "result.h5"
    _on_first_rank(world, lambda: result.save(path), "saving the result")
    for callback in callbacks:
        callback.saved(path)
        callback.finish("done")
    return Outcome(result, path)


def reconstruction(recipe: Recipe, world: World, saved: checkpoint.Checkpoint | None = None) -> Reconstruction:
    """What a recipe describes, on this world's ranks, ready to run: data read, estimate made. Collective."""
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
        saved=saved,
    )
    recon.stages = [stage.model_copy(deep=True) for stage in recipe.stages]
    return recon


def _info(recipe: Recipe, recon: Reconstruction, out: Path, resumed: bool) -> RunInfo:
    estimate, scan = recon.state.estimate, recon.scan
    slices, height, width = estimate.object.shape
    return RunInfo(
        stages=[(s.name, s.epochs, len(draw(scan.positions, s.batch, recipe.seed, 0))) for s in recon.stages],
        views=scan.views,
        window=scan.window,
        object_shape=(slices, height, width),
        modes=len(estimate.probe),
        ranks=recon.world.size,
        device=str(recon.world.device),
        precision=recipe.precision,
        out=out,
        resumed=resumed,
        done_epochs=recon.state.done_epochs,
    )


def _on_first_rank(world: World, act: Callable[[], Any], doing: str) -> None:
    failure = None
    if world.rank == 0:
        try:
            act()
        except Exception as error:
            failure = error
    world.all_well(failure, doing)


class _Clock:
    """Whether a checkpoint is due: every so many epochs, and when so many minutes have passed since the last one."""

    def __init__(self, epochs: int, minutes: float) -> None:
        self.epochs, self.seconds, self.last = epochs, 60 * minutes, time.monotonic()

    def __call__(self, done: int) -> bool:
        if done % self.epochs and time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True
