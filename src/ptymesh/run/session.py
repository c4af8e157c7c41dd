"""Session from a recipe to a result, as `ptymesh run` and `ptymesh resume` have it on every rank."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ptymesh import kernels
from ptymesh.distributed.agreement import refuse_differences
from ptymesh.distributed.joining import join
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, Diverged, Interrupted, PtymeshError
from ptymesh.files import target_of
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.prepare.checks import refuse_featureless, without_marks
from ptymesh.io.results import Result
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.planning.batches import balance, draw, hold_out
from ptymesh.recipe.scans import load_scan
from ptymesh.recipe.schema import Recipe
from ptymesh.run.assembly.data_checks import READING, checked_recipe, record_checks, to_stderr
from ptymesh.run.assembly.rank_facts import REMEDY, recipe_facts
from ptymesh.run.checkpoint_counters import counters_of
from ptymesh.run.loop import Loop
from ptymesh.run.machine import peak_bytes
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.trials.twins import sign_of_twin
from ptymesh.run_folder.control import Control
from ptymesh.run_folder.lock import OwnershipCheck, hold_folder, hold_share
from ptymesh.run_folder.patterns import PatternPairs, compared_patterns
from ptymesh.run_folder.preview import Estimated, Preview
from ptymesh.run_folder.reports import Callback, RunInfo, Traffic
from ptymesh.run_folder.signals import StopSignal
from ptymesh.types import complex_dtype


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run.

    Attributes:
        result: its object as far as this rank holds it.
        path: where it was written.
        recipe: that was run.
        patterns: to be drawn beside their model; None where this rank does not hold the whole object.
    """

    result: Result
    path: Path
    recipe: Recipe
    patterns: PatternPairs | None = None


#: Attributes of a result that belong to the verdict on it.
JUDGED = (
    "verdict",
    "verdict_sentence",
    "verdict_causes",
    "unexplained_views",
    "times_noise",
    "final_residual",
    "residual_views",
    "noise_floor",
    "noise_level",
    "convergence",
)
#: Finds the stages that a recipe leaves open, on all ranks; its last argument returns True if it should stop.
Decide = Callable[[Recipe, World, Callable[[], bool]], Recipe]


class StageChoice(NamedTuple):
    """Search for the stages that a recipe leaves open.

    Attributes:
        decide: makes the recipe that is run of one with `stages: auto`.
        time_s: seconds for that and the run, compared between ranks; None: no limit.
    """

    decide: Decide
    time_s: float | None = None


def run_recipe(
    recipe: Recipe,
    *,
    device: str = "auto",
    resume: bool = False,
    other_data: bool = False,
    callbacks: Sequence[Callback] = (),
    lease: ExitStack | None = None,
    stages: StageChoice | None = None,
) -> RunOutcome:
    """Run a recipe on the ranks that this process belongs to, from the start or from its checkpoint.

    Args:
        recipe: to run.
        device: auto, cpu, cuda or cuda:N.
        resume: True to continue from the checkpoint.
        other_data: True to continue even if the data are not those of the checkpoint.
        callbacks: watchers; those of rank 0 are called.
        lease: keeps the output folder's lock, where more is to be written there after the run.
        stages: how they are found where the recipe leaves them open; None: they must not be open.

    Raises:
        BadInput: also where ranks are given different recipes or options.
        Diverged: the last good checkpoint stays.
        Interrupted: after a checkpoint.
    """
    # a signal while the data are read stops the run after a batch
    with ExitStack() as stack, StopSignal() as stop, join(device) as world:
        with world.heartbeat.doing("read"):
            facts = recipe_facts(recipe, other_data=other_data, time_s=None if stages is None else stages.time_s)
            refuse_differences(world, facts, REMEDY)
        checks = take_output_folder(world, recipe.output.dir, stack if lease is None else lease)
        watching = [*checks, *callbacks] if world.rank == 0 else []
        stop.control = Control(recipe.output.dir) if world.rank == 0 else None
        if stages is not None and recipe.auto is not None:
            for callback in watching:
                callback.entering("searching", recipe.output.dir)
            recipe = stages.decide(recipe, world, stop.is_asked)
        for callback in watching:
            callback.entering("reading", recipe.output.dir)
        return _run(recipe, world, resume, other_data, watching, stop)


def take_output_folder(world: World, folder: Path, lease: ExitStack) -> list[Callback]:
    """Take the folder on rank 0, and return what checks that it stays this run's; or no rank goes on. Collective.

    Args:
        world: the ranks.
        folder: of the run.
        lease: gives the folder back when it is closed.
    """

    def take() -> list[Callback]:
        if world.rank == 0:
            return [OwnershipCheck(lease.enter_context(hold_folder(folder)))]
        hold_share(folder, lease)
        return []

    return world.on_all_ranks(take, "taking the output folder")


def _run(
    recipe: Recipe, world: World, resume: bool, other_data: bool, callbacks: Sequence[Callback], stop: StopSignal
) -> RunOutcome:
    out = Path(recipe.output.dir)
    saved = None
    world.on_all_ranks(lambda: target_of(out / "result.h5"), "looking at the output folder")
    _refuse_disagreement(world, resume, out)
    with world.heartbeat.doing("read"):
        if resume:
            saved = _load_checkpoint(out / "checkpoint", world)
        findings: list[str] = []
        if recipe.scans and not resume:
            recipe, findings = checked_recipe(recipe, world)
        recon = reconstruction(recipe, world, saved, other_data=other_data, say=lambda _: None)
        recon.findings[:0] = findings
    if recon.unchecked.checks != NO_CHECKS:
        recipe = record_checks(recipe, recon.scan, recon.unchecked)
    recipe = recipe.model_copy(update={"optics": recon.optics})
    with closing(recon):
        with world.heartbeat.doing("read"):
            data = recon.identity(recipe.fingerprint)
            info = _describe_run(recipe, recon, out, resume, saved.note if saved else "")
            world.on_all_ranks(lambda: _start_callbacks(callbacks, info), "starting the run")
        if resume:
            _tell_checkpoint(recon, out)
        about = {"recipe": recipe.to_yaml(), "seed": recipe.seed, "data": data}
        return _carry_out(recipe, recon, out, about, callbacks, stop)


def _refuse_disagreement(world: World, resume: bool, out: Path) -> None:
    """Raise PtymeshError unless all ranks go on from a checkpoint, or none.

    Each has looked by itself, and on a shared disk may see what was.
    """
    answers = world.gather_strings(str(resume))
    if len(set(answers)) > 1:
        blind = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer == str(False))
        raise PtymeshError(
            f"Rank {blind} of {world.size} would start anew, and the others go on from the checkpoint in {out}: "
            "their machines do not see the same files yet; start the run again in a minute."
        )


def _carry_out(
    recipe: Recipe,
    recon: Reconstruction,
    out: Path,
    about: dict[str, object],
    callbacks: Sequence[Callback],
    stop: StopSignal,
) -> RunOutcome:
    folder, world = out / "checkpoint", recon.world

    def save() -> None:
        for callback in callbacks:
            callback.saving(folder)
        recon.state.save(folder, loop.problem, about)
        _tell_checkpoint(recon, out)
        # collective, so that messages about a rank lost from now on name this checkpoint
        ranks = _measure_ranks(world, time.perf_counter() - began, world.heartbeat.waited_s - waited, loop.traffic)
        for callback in callbacks:
            callback.saved(folder)
            callback.measured(ranks)

    began, waited = time.perf_counter(), world.heartbeat.waited_s
    clock = _CheckpointClock(recipe.output.checkpoint_every, recipe.output.checkpoint_minutes)
    callbacks = [*callbacks, Preview(out, lambda: _estimated(recon, loop), world.rank)]
    loop = recon.loop(
        hold_out=recipe.hold_out,
        callbacks=callbacks,
        stop=stop.is_asked,
        save=save,
        due=lambda done: clock(done) | stop.take_save(),
    )
    if not gc.isenabled():  # since this process started (__main__)
        gc.freeze()
        gc.enable()
    try:
        loop.run()
    except (Interrupted, Diverged) as ending:
        for callback in callbacks:
            if isinstance(ending, Diverged):
                callback.judged({"verdict": "failed", "verdict_sentence": str(ending)})
            callback.finish("interrupted" if isinstance(ending, Interrupted) else "diverged")
        raise
    path = out / "result.h5"
    recon.traffic = loop.traffic
    with world.heartbeat.doing("save"):
        for callback in callbacks:
            callback.saving(path)
        measured = {
            **_measure_ranks(world, time.perf_counter() - began, world.heartbeat.waited_s - waited, loop.traffic),
            "balance": _stage_balances(recipe, recon),
        }
        recon.trial = lambda: sign_of_twin(recipe, recon.scan.window)
        result = recon.save(path, recipe.to_yaml(), measured)
        for callback in callbacks:
            callback.saved(path)
            callback.judged({name: result.attrs[name] for name in JUDGED if result.attrs.get(name) is not None})
            callback.finish("done")
    return RunOutcome(result, path, recipe, _compare_patterns(recipe, recon, result))


def _estimated(recon: Reconstruction, loop: Loop) -> Estimated | None:
    """Return object, or this rank's tile of it, and probe as they are; None where it has none. Not collective."""
    estimate, layout = loop.state.estimate, loop.problem.layout
    filled = layout.last_filled(estimate.object)
    extent = estimate.extent[0], estimate.extent[1]
    tile = None if tuple(filled.shape[-2:]) == extent else layout.tile(estimate)
    if (recon.world.rank and tile is None) or (tile is not None and tile.empty):
        return None
    pixel, coarser = recon.scan.geometry.object_pixel_m, loop.coarsened
    size = None if pixel is None else (coarser * pixel[0], coarser * pixel[1])
    have_moved = bool((estimate.nominal != estimate.positions).any())
    estimated = Estimated(
        filled,
        estimate.probe,
        size,
        estimate.origin,
        positions_px=estimate.positions,
        nominal_px=estimate.nominal if have_moved else None,
    )
    if tile is None:
        return estimated
    part = estimate.object[(slice(None), *tile.inside(estimate.corner))]
    return estimated._replace(object=part, corner=tile.corner, extent=extent)


def _compare_patterns(recipe: Recipe, recon: Reconstruction, result: Result) -> PatternPairs | None:
    """Return the patterns that a figure shows; None where they are not drawn, or cannot be compared here."""
    is_complete = result.object.shape[-2:] == tuple(recon.state.estimate.extent)
    if not recipe.output.figures or not is_complete or recon.world.rank:
        return None
    try:
        return compared_patterns(result, recon.scan)
    except Exception:  # no figure fails a run, and who draws it says what is wrong
        return None


def _measure_ranks(world: World, seconds: float, waited_s: float, traffic: Traffic) -> dict[str, list[float]]:
    """Return attributes of the result, with a value for each rank. Collective.

    They are the most memory held, in bytes, the time of the loop outside and inside of collectives, in seconds, and the
    bytes that were sent and received within batches, per epoch.

    Args:
        world: the ranks.
        seconds: since this rank's loop began.
        waited_s: of these, in collectives.
        traffic: of this rank.
    """
    values = {
        "rank_peak_bytes": float(peak_bytes(world.device)),
        "rank_computed_s": seconds - waited_s,
        "rank_waited_s": waited_s,
    }
    names = ("rank_sent_bytes_per_epoch", "rank_received_bytes_per_epoch")
    values |= dict(zip(names, traffic.bytes_per_epoch(), strict=True))
    table = torch.zeros(len(values), world.size, dtype=torch.float64, device=world.device)
    table[:, world.rank] = torch.tensor([*values.values()], dtype=torch.float64)
    return dict(zip(values, world.sum(table)[0].tolist(), strict=True))


def _start_callbacks(callbacks: Sequence[Callback], info: RunInfo) -> None:
    for callback in callbacks:
        callback.start(info)


def _tell_checkpoint(recon: Reconstruction, out: Path) -> None:
    """Tell other processes what there is to go on from, should this rank hang or be killed."""
    epochs = recon.state.done_epochs
    recon.world.tell_checkpoint(
        f"The last checkpoint holds {epochs} whole epoch{'s' * (epochs != 1)}; `ptymesh resume {out}` goes on."
    )


def _load_checkpoint(folder: Path, world: World) -> checkpoint.Checkpoint:
    """Return the newest sound checkpoint, which becomes the current one, and say what is wrong with newer ones.

    Collective.
    """

    def load() -> checkpoint.Checkpoint:
        saved = checkpoint.load(folder, world)
        if saved.note and world.rank == 0:
            to_stderr(saved.note)
            checkpoint.make_current(folder, saved.generation)
        return saved

    return world.on_all_ranks(load, "reading the checkpoint")


def reconstruction(
    recipe: Recipe,
    world: World,
    saved: checkpoint.Checkpoint | None = None,
    *,
    other_data: bool = False,
    say: Callable[[str], None] = to_stderr,
) -> Reconstruction:
    """Return the reconstruction that a recipe describes, on this world's ranks, ready to run. Collective.

    Args:
        recipe: with its stages.
        world: the ranks.
        saved: checkpoint from which the estimate is taken; it must be of the same data.
        other_data: True to allow a checkpoint of other data.
        say: called on the first rank with each sentence on what checks of the data have led to.
    """
    kernels.start_preparing(world.device, complex_dtype(recipe.precision))
    recon = Reconstruction(
        world.on_all_ranks(lambda: _scan_with_features(recipe), READING),
        **recipe.reconstruction_options,
        device=world,
        layout=recipe.layout,
        planned=recipe.stages[0 if saved is None else min(counters_of(saved.meta).stage, len(recipe.stages) - 1)],
        scratch=recipe.scratch or _nearest_existing(recipe.output.dir),
        saved=saved,
        other_data=other_data,
        say=say,
    )
    recon.stages = [stage.model_copy(deep=True) for stage in recipe.stages]
    return recon


def _scan_with_features(recipe: Recipe) -> Measurement:
    """Return the recipe's scan; raise BadInput if it shows no object, or the recipe has no stages yet."""
    if recipe.auto is not None:
        raise BadInput(
            "stages is auto, and nothing here finds them: use `ptymesh run`, or the recipe that it has written."
        )
    scan = load_scan(recipe)
    refuse_featureless(without_marks(scan))
    return scan


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists; a staged file has no name and needs no folder."""
    return next(ancestor for ancestor in (folder.absolute(), *folder.absolute().parents) if ancestor.is_dir())


def _describe_run(recipe: Recipe, recon: Reconstruction, out: Path, resumed: bool, note: str) -> RunInfo:
    estimate, scan = recon.state.estimate, recon.scan
    height, width = estimate.extent
    return RunInfo(
        stages=[(s.name, s.epochs, len(draw(scan.positions, s.batch, recipe.seed, 0))) for s in recon.stages],
        views=scan.views,
        window=scan.window,
        object_shape=(len(estimate.object), height, width),
        modes=len(estimate.probes[0]),
        ranks=recon.world.size,
        device=str(recon.world.device),
        precision=recipe.precision,
        out=out,
        resumed=resumed,
        done_epochs=recon.state.done_epochs,
        layout=f"{recon.problem.layout.name} ({recon.layout_why})" if recon.world.size > 1 else "",
        balance=_stage_balances(recipe, recon) if recon.world.size > 1 else [],
        patterns=recon.problem.loader.patterns.where(),
        note=note,
        findings=[*recon.findings, *recon.remarks()],
    )


def _stage_balances(recipe: Recipe, recon: Reconstruction) -> list[float]:
    """Return the balance of each stage, see `batches.balance`."""
    scan, layout, ranks = recon.scan, recon.problem.layout, recon.world.size
    unturned = scan.positions if scan.stored_positions is None else scan.stored_positions
    training = np.setdiff1d(np.arange(scan.views), hold_out(unturned, recipe.hold_out, recipe.seed))
    balances = []
    for stage in recon.stages:
        epoch_batches = draw(scan.positions, stage.batch, recipe.seed, 0, stage.order, training)
        dealt = layout.follows_draw
        owner = owners(scan.positions, ranks, stage.order == "compact", training) if dealt else layout.owner
        balances.append(balance(owner, epoch_batches, ranks))
    return balances


class _CheckpointClock:
    """Clock of checkpoints: one is due every so many epochs, and so many minutes after the last one."""

    def __init__(self, epochs: int, minutes: float) -> None:
        self.epochs, self.seconds, self.last = epochs, 60 * minutes, time.monotonic()

    def __call__(self, epochs_done: int) -> bool:
        """Return True if a checkpoint is due after `epochs_done` epochs."""
        if epochs_done % self.epochs and time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True
