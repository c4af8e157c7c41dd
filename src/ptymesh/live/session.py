"""Reconstruction of a scan that is still being measured, segment by segment.

N       frames so far
L, H, W slices, object pixels

A segment is an epoch over a part of the views that are there: those that no update has seen, which come first, those
that fewest updates have seen, and some from anywhere. Object and probe go from one segment to the next; the object
grows with the scan. How many views a segment has does not depend on the rate of the frames, so that a slow machine uses
each frame less often, and loses none. Once the stream has ended, segments go on until each view was used `uses` times.

On several ranks the first one receives the frames and writes them to the spool, which all read; each updates by its
share of every batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ptymesh.distributed.agreement import refuse_differences
from ptymesh.distributed.devices import one_thread
from ptymesh.distributed.joining import join
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES, Engine
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.engines.sweeping import Sweeping
from ptymesh.errors import BadInput, Interrupted
from ptymesh.files import replacing
from ptymesh.geometry import Geometry
from ptymesh.io.options import ViewRange
from ptymesh.io.prepare.preprocess import measurement_of
from ptymesh.io.results import Result
from ptymesh.kernels import kernel_backend
from ptymesh.live.admissions import Admission, Admissions
from ptymesh.live.choice import BATCH_BEHIND, SEGMENT, choose_batch, choose_views
from ptymesh.live.frames import ApartStream, FrameSource
from ptymesh.live.object_parts import join_part, paste
from ptymesh.live.outcome import LiveOptions, LiveOutcome
from ptymesh.live.receiving import Receiver
from ptymesh.live.spool import Spool
from ptymesh.live.state import LOG, PICTURE, SUMMARY, kept_fields, restore_state
from ptymesh.live.steering import Steering
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.model import Model, SliceStack
from ptymesh.problem import Problem
from ptymesh.problem.counts import mean_pattern
from ptymesh.recipe.initial import MARGIN_PX, StartSettings, initial_estimate
from ptymesh.recipe.schema import Recipe
from ptymesh.run.loop import Loop
from ptymesh.run.result_fields import describe_object
from ptymesh.run.state import RunState
from ptymesh.run_folder.reports import StreamReport
from ptymesh.storage.cached import CachedViews, PatternCache
from ptymesh.types import complex_dtype

#: Seconds between two pictures, at least.
SNAPSHOT_S = 1.0
#: Unknowns that go from one segment to the next.
KEPT_UNKNOWNS = ("object", "amplitude", "probe")
#: Seconds between two lines on how far the reconstruction is.
SAY_S = 5.0
#: Share of the time that writing pictures may take, at most.
SNAPSHOT_SHARE = 0.05


class _KeptProbe:
    """Start of a segment's probe where the segment before has left it.

    Args:
        probe: (M, h, w) complex.
    """

    kind = "kept"

    def __init__(self, probe: torch.Tensor | None) -> None:
        self._probe = probe

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> torch.Tensor:
        """Return the probe."""
        assert self._probe is not None
        return self._probe

    def parameters(self) -> dict[str, dict[str, float]]:
        """Return no parameters: a probe that has moved is no function of those it started from."""
        return {}


def reconstruct_live(
    recipe: Recipe,
    source: FrameSource | ApartStream | None,
    folder: Path,
    options: LiveOptions,
    *,
    world: World | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[LiveOutcome, Measurement]:
    """Reconstruct while frames arrive, and leave object and probe in FOLDER/live.h5. Collective.

    FOLDER/spool holds the frames, FOLDER/live.jsonl a line for each segment. A folder that holds frames of the same
    stream already is gone on with, from the object that was written last.

    Args:
        recipe: `data` has what the stream does not say; its first stage's engine makes the updates.
        source: of the frames, and of positions that come apart; None on all ranks but the first.
        folder: of the run, which all ranks see.
        options: how often views are used, and how long the source may be silent.
        world: the ranks; None: those that this process was started with.
        stop: asked before each segment whether to end early.
        say: told on the first rank what happens, in lines.

    Returns:
        The outcome, and the scan with all its views.

    Raises:
        BadInput: engine, recipe and stream do not fit.
        Interrupted: stopped before the stream had ended; the frames so far are in the spool.
        PtymeshError: the source does not answer.
    """
    _check(recipe)
    world = join("cpu") if world is None else world
    kernel_backend(world.device, complex_dtype(recipe.precision))  # read before the first frame has to wait for it
    cache, receiver, steering = PatternCache(), None, Steering(folder, world.rank)
    with steering.publish_status(followed=options.followed, command=options.command), ExitStack() as receiving:
        if world.rank == 0:
            assert source is not None
            reserve = partial(_reserve_memory, cache, recipe, world.size)
            receiver = receiving.enter_context(Receiver(source, folder / "spool", reserve))
        admissions = Admissions(world, receiver, options, stop, say, steering)
        session = _Session(recipe, world, admissions, cache, folder)
        outcome = session.follow()
        return outcome, session.measured(outcome.views)


def _check(recipe: Recipe) -> None:
    """Raise BadInput where a recipe asks for what a stream does not allow."""
    if not recipe.stages[0].meets_new_views:
        *engines, last = (name for name in ENGINES.names() if ENGINES[name].meets_new_views)
        raise BadInput(
            f"The first stage is {recipe.stages[0].name}, which remembers views or needs all of them from the start; "
            f"make it {', '.join(engines)} or {last}: other stages polish the result afterwards."
        )
    moving = [*recipe.stages[0].unknowns.moving()] if isinstance(recipe.stages[0], Elementwise | Sweeping) else []
    for name in moving:
        if name not in KEPT_UNKNOWNS:
            raise BadInput(
                f"stages.0.unknowns.{name} is not kept between segments of a stream; leave it out, or to a stage that "
                "polishes the result afterwards."
            )
    if recipe.data.views != ViewRange():
        raise BadInput("data.views chooses among views, and those of a stream are not there yet; leave it out.")
    if recipe.positions.raster is not None:
        raise BadInput("positions.raster needs all views, and a stream brings its positions; leave it out.")
    for name, one in recipe.optics.items():
        if one.needs_whole_scan:
            raise BadInput(
                f"optics.{name} reads its options from the whole scan, and a stream has not brought it yet; give them, "
                "or leave it out."
            )
        if binning_of([one]) > 1:
            raise BadInput(f"optics.{name} has windows wider than the frames of a stream; leave it out.")
        for unknown in one.unknowns:
            if unknown.scope == "tiled":
                raise BadInput(
                    f"{unknown.name} of optics.{name} is not kept between segments of a stream; leave it out."
                )
    if recipe.object.modes > 1:
        raise BadInput("object.modes are not kept between segments of a stream; leave it out.")
    if recipe.probe.opr_modes:
        raise BadInput("probe.opr_modes are shares of each view, which segments do not keep; leave it out.")


def _reserve_memory(cache: PatternCache, recipe: Recipe, ranks: int, spool: Spool) -> None:
    """Reserve memory for this rank's patterns where the stream says how many there will be.

    Args:
        cache: will hold them.
        recipe: says how patterns are prepared.
        ranks: number of ranks that share them.
        spool: described, maybe without a frame so far.
    """
    cache.expected = spool.description.views
    one = replace(spool.scan(1), positions=np.zeros((1, 2)))
    data = recipe.data.model_copy(update={"centre": None})  # which may be found in frames, and changes no shape
    with suppress(BadInput, RuntimeError):  # of the recipe, and of torch's memory: said again with the first frames
        cache.reserve(measurement_of(one, data, recipe.positions, "reserved").patterns, ranks)


class _Session:
    """A live reconstruction under way, on one of its ranks.

    Args:
        recipe: `data` has what the stream does not say; its first stage's engine makes the updates.
        world: the ranks.
        admissions: say which frames each segment may use.
        cache: holds patterns that have been prepared.
        folder: of the run.
    """

    def __init__(self, recipe: Recipe, world: World, admissions: Admissions, cache: PatternCache, folder: Path) -> None:
        self.recipe, self.admissions, self.cache, self.folder = recipe, admissions, cache, folder
        self.world, self.dtype = world, complex_dtype(recipe.precision)
        self.options, self.say, self.receiver = admissions.options, admissions.say, admissions.receiver
        self.steering = admissions.steering
        self.state, self._rows = restore_state(folder, recipe.to_yaml(), recipe.seed)
        refuse_differences(
            world,
            {"segments done": str(self.state.segments), "uses": str(self.options.uses), "recipe": recipe.to_yaml()},
            "start all ranks with the same command, in a folder that all of them see",
        )
        #: Seconds from arrival to the end of the first segment, of the new views of each segment.
        self.latencies: list[np.ndarray] = [np.empty(0)]
        #: Time (time.monotonic) of the first frames, of the next picture and of the next line.
        self._began, self._next_picture, self._next_line = 0.0, 0.0, 0.0
        #: Time on the processor (time.process_time) at the first frames.
        self._cpu_began = 0.0
        self._problem: Problem | None = None
        #: Residual of the last segment.
        self._residual: float | None = None
        self._opened: Spool | None = None

    @property
    def spool(self) -> Spool:
        """The spool, which is there once a segment may begin."""
        if self._opened is None:
            spool = None if self.receiver is None else self.receiver.spool
            self._opened = spool or Spool(self.folder / "spool")
            self.cache.expected = self._opened.description.views
        return self._opened

    def follow(self) -> LiveOutcome:
        """Run segments until the stream has ended and every view was used often enough. Collective."""
        state, updates, last_new_s, waiting = self.state, 0, 0.0, False
        uses_at_end: np.ndarray | None = None
        while True:
            admission = self.admissions.decide_frames(state.segments, waiting)
            self._report_progress(admission)
            if admission.stop:
                self._save()
                raise Interrupted(
                    f"Stopped with {admission.frames} frames; the same command goes on with them, and live.h5 is the "
                    f"picture so far, if there was one."
                )
            if waiting := not admission.ready:
                continue
            if not self._began:
                self._began, self._cpu_began = time.monotonic(), time.process_time()
                self._next_line = self._began + SAY_S
                self._truncate_log()
            state.admit_frames(max(admission.frames, len(state.uses)))
            if admission.ended and uses_at_end is None:
                uses_at_end = state.uses.copy()
                self._next_picture = 0.0  # people wait for what the last frames show
            views = choose_views(state.uses, self.options.uses, self.recipe.seed, state.segments, ended=admission.ended)
            if waiting := not len(views):
                if admission.ended:
                    break
                continue
            row = self._run_segment(views)
            last_new_s = time.monotonic() if row["new"] else last_new_s
            updates += len(views)
            if self.world.rank == 0:
                with (self.folder / LOG).open("a") as log:
                    log.write(json.dumps(row | {"ended": admission.ended}) + "\n")
                self._show(row)
        assert uses_at_end is not None
        return self._finish(uses_at_end, updates, last_new_s)

    def _report_progress(self, admission: Admission) -> None:
        """Write how far the run is where that is due, and the picture where it was asked for."""
        if self.steering.take_save():
            self._save()
        spool = None if self.receiver is None else self.receiver.spool
        expected, engine = None if spool is None else spool.description.views, self.recipe.stages[0].name
        report = StreamReport(engine, self.world.size, admission.frames, expected, admission.ended, self._residual)
        self.steering.report(report)

    def _truncate_log(self) -> None:
        """Write the log again with the segments up to the stored state; later ones were lost and will be run again.

        The summary of an earlier command is deleted, as the run is not done.
        """
        if self.world.rank == 0:
            (self.folder / SUMMARY).unlink(missing_ok=True)
            with replacing(self.folder / LOG) as path:
                path.write_text("".join(json.dumps(row) + "\n" for row in self._rows))

    def _finish(self, uses_at_end: np.ndarray, updates: int, last_new_s: float) -> LiveOutcome:
        """Write what there is in the end, and return the outcome.

        Args:
            uses_at_end: (N,) int64, uses of each view when the last frame had come.
            updates: number of views that updates have seen.
            last_new_s: time (time.monotonic) of the last first use.
        """
        ended_s = time.monotonic()
        last = ended_s if self.receiver is None else self.receiver.arrivals[-1][1]
        self._save()
        if self.receiver is not None and (missing := self.spool.missing()):
            self.say(
                f"{missing} frames before the last one have not come here, by the detector's count; see whether "
                "another program takes from the same stream, or a receiver was killed."
            )
        outcome = LiveOutcome(
            len(self.state.uses),
            self.state.uses,
            uses_at_end,
            np.concatenate(self.latencies),
            ended_s - self._began,
            ended_s - last,
            max(0.0, last_new_s - last),
            updates / max(ended_s - self._began, 1e-9),
            (time.process_time() - self._cpu_began) / max(updates, 1),
        )
        if self.world.rank == 0:
            (self.folder / SUMMARY).write_text(json.dumps(outcome.summary(), indent=1) + "\n")
        return outcome

    def _show(self, row: dict[str, object]) -> None:
        """Write a picture, and say how far the reconstruction is, where that is due; row: as in live.jsonl."""
        now = time.monotonic()
        if now >= self._next_picture:
            self._save()
            took = time.monotonic() - now
            self._next_picture = now + max(SNAPSHOT_S, took / SNAPSHOT_SHARE)
        if now >= self._next_line:
            self.say(self._progress(row))
            self._next_line = now + SAY_S

    def measured(self, count: int) -> Measurement:
        """Return the first `count` frames as the recipe prepares them, without checks of the data."""
        measurement = measurement_of(self.spool.scan(count), self.recipe.data, self.recipe.positions, f"live-{count}")
        return replace(measurement, checks=NO_CHECKS)

    def _model(self, geometry: Geometry) -> Model:
        """Return the forward model."""
        options = self.recipe.object
        return Model.for_geometry(
            geometry,
            subpixel=self.recipe.positions.subpixel,
            optics=tuple(self.recipe.optics.values()),
            slices=SliceStack(options.slices, options.slice_spacing_m or 0.0, options.tilt_rad or (0.0, 0.0)),
            dtype=self.dtype,
            device=self.world.device,
        )

    def _problem_of(self, part: Measurement) -> Problem:
        """Return the problem of the views of a segment, in the memory of the one before."""
        layout = Replicated(self.world, part.positions)
        if self._problem is None:
            self._problem = Problem(self._model(part.geometry), part, layout, self.dtype)
        else:
            self._problem = self._problem.with_views(part, layout)
        return self._problem

    def _engine(self, positions: np.ndarray, window: tuple[int, int], *, is_behind: bool) -> Engine:
        """Return the engine of a segment, whose learning rate is that of a first epoch.

        Args:
            positions: (n, 2) float, of its views, in pixels.
            window: (h, w).
            is_behind: True if frames come faster than they are used: large batches are faster.
        """
        first = self.recipe.stages[0]
        steady = {"scheduler": None} if "scheduler" in type(first).model_fields else {}
        engine = first.model_copy(update={"epochs": 1, **steady}, deep=True)
        if engine.batch is None:
            return engine
        most = engine.batch
        batch = max(most, BATCH_BEHIND) if is_behind else choose_batch(positions, window, most)
        return engine.model_copy(update={"batch": batch})

    def _run_segment(self, views: np.ndarray) -> dict[str, object]:
        """Run one epoch over some views, beginning with the object and the probe of the segment before.

        Args:
            views: (n,) int64, ascending.

        Returns:
            A line of live.jsonl.
        """
        state, recipe = self.state, self.recipe
        measurement = self.measured(len(state.uses))
        part = replace(
            measurement,
            patterns=CachedViews(self.cache, measurement.patterns, views),
            positions=measurement.positions[views],
            stored_positions=None,
            steps=None,
            paths=None if measurement.paths is None else measurement.paths[views],
            intensity=None if measurement.intensity is None else measurement.intensity[views],
        )
        problem = self._problem_of(part)
        first = state.object is None or state.probe is None
        mean = mean_pattern(problem) if first else np.ones(part.window)
        with one_thread():  # large sums and decompositions depend on the number of threads
            estimate = initial_estimate(
                part,
                mean,
                StartSettings(recipe.precision, self.world.device, MARGIN_PX, recipe.seed),
                object=recipe.object if first else recipe.object.model_copy(update={"initial": "ones"}),
                probe=recipe.probe if first else recipe.probe.model_copy(update={"start": _KeptProbe(state.probe)}),
                optics=tuple(recipe.optics.values()),
            )
        zero = np.round(np.array(estimate.origin)).astype(np.int64)
        if state.object is not None and state.probe is not None:
            paste(state.object, estimate.object, zero - state.zero)
            if estimate.object_values is not None and state.values is not None:
                paste(state.values, estimate.object_values, zero - state.zero)
            estimate.probe.copy_(state.probe)  # which has not been rescaled
        engine = self._engine(part.positions, part.window, is_behind=int((state.uses == 0).sum()) >= SEGMENT)
        run = RunState(estimate)
        if engine.memory_meets_new_views:  # others begin anew with each segment
            run.engines[0] = state.part_of_memory(estimate.object, zero)
        loop = Loop(problem, run, [engine], seed=recipe.seed + state.segments)
        residual = [report.residual for report in loop.epochs()][-1]
        if engine.memory_meets_new_views:
            state.keep_memory(engine.state, estimate.object, zero)
        if estimate.object_values is not None:
            state.about_object = describe_object(estimate, part.geometry)
            state.values, _ = join_part(state.values, state.zero, estimate.object_values, zero, outside=0.0)
        state.object, state.zero = join_part(state.object, state.zero, estimate.object, zero)
        state.probe = estimate.probe.clone()
        self._residual = float(residual)
        new = views[state.uses[views] == 0]
        if self.receiver is not None:
            waited = time.monotonic() - self.receiver.arrival_times(new)
            self.latencies.append(waited[np.isfinite(waited)])
        state.uses[views] += 1
        state.segments += 1
        latencies_s = self.latencies[-1]
        return {
            "segment": state.segments,
            "frames": len(state.uses),
            "views": len(views),
            "new": len(new),
            "wanted": self.options.uses,
            "unseen": int((state.uses == 0).sum()),
            "least_uses": int(state.uses.min()),
            "mean_uses": round(float(state.uses.mean()), 4),
            "latency_s": round(float(np.median(latencies_s)), 4) if len(latencies_s) else None,
            "residual": self._residual,
            "seconds": round(time.monotonic() - self._began, 4),
        }

    def _save(self) -> None:
        """Write the object and the probe as they are to live.h5, on the first rank."""
        state = self.state
        if self.world.rank or state.object is None or state.probe is None:
            return
        scan = self.measured(len(state.uses))
        pixel = scan.geometry.object_pixel_m
        attrs = {
            "engine": self.recipe.stages[0].name,
            "segments": state.segments,
            "frames": len(state.uses),
            "seconds": time.monotonic() - self._began,
            "propagation": scan.geometry.propagation,
            "zero_y": int(state.zero[0]),
            "zero_x": int(state.zero[1]),
            **state.about_object,
        }
        Result(
            object=state.object.cpu().numpy(),
            probe=state.probe.cpu().numpy(),
            positions_px=scan.positions + state.zero,
            positions_m=None if pixel is None else scan.positions * np.array(pixel),
            pixel_size_m=pixel,
            slice_spacing_m=self.recipe.object.slice_spacing_m or 0.0,
            recipe=self.recipe.to_yaml(),
            attrs=attrs,
            **kept_fields(state, self.recipe.object.kind),
        ).save(self.folder / PICTURE)
        self.world.tell_checkpoint(
            f"{self.folder / PICTURE} holds {state.segments} segments; the same command goes on."
        )

    def _progress(self, row: dict[str, object]) -> str:
        """Return a line on how far the reconstruction is; row: as in live.jsonl."""
        recent = np.concatenate(self.latencies[-20:])
        latency = f"  frames are used {np.median(recent):.2f} s after they arrive" if len(recent) else ""
        unseen = f", {row['unseen']} of them not used yet" if row["unseen"] else ""
        return f"{row['frames']} frames{unseen}  residual {row['residual']:.4f}{latency}"
