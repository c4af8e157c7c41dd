"""Reconstruction of a scan that is still being measured, segment by segment.

N       frames so far
L, H, W slices, object pixels

A segment is an epoch over a part of the views that are there: those that no update has seen, which come first, and
those that fewest updates have seen. Object and probe go from one segment to the next; the object grows with the scan.
How many views a segment has does not depend on the rate of the frames, so that a slow machine uses each frame less
often, and loses none. Once the stream has ended, segments go on until each view was used `uses` times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from ptymesh.distributed.joining import join
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput, Interrupted, PtymeshError
from ptymesh.geometry import Geometry
from ptymesh.io.options import ViewRange
from ptymesh.io.prepare.preprocess import measurement_of
from ptymesh.io.results import Result
from ptymesh.kernels import kernel_backend
from ptymesh.live.frames import FrameSource
from ptymesh.live.object_parts import join_part, paste
from ptymesh.live.outcome import LiveOptions, LiveOutcome
from ptymesh.live.positions import PositionSource
from ptymesh.live.receiving import SILENT_S, Receiver
from ptymesh.live.spool import Spool
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.physics.model import Model, SliceStack
from ptymesh.problem import Problem
from ptymesh.problem.counts import mean_pattern
from ptymesh.recipe.initial import initial_estimate
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import DataStart
from ptymesh.run.loop import Loop
from ptymesh.run.reconstruction import MARGIN_PX
from ptymesh.run.state import RunState
from ptymesh.types import complex_dtype

#: Views of a segment; of these, at most so many that are new, as long as all are used as often as is asked.
SEGMENT = 512
#: Views of a segment where so many new ones wait that old ones have to.
LARGEST = 2048
#: Views with which the first segment begins.
FIRST = 32
#: Seconds between two looks at the spool, and between two pictures, at least.
POLL_S, SNAPSHOT_S = 0.02, 1.0
#: Seconds between two lines on how far the reconstruction is.
SAY_S = 5.0
#: Share of the time that writing pictures may take, at most.
SNAPSHOT_SHARE = 0.05


@dataclass
class LiveState:
    """Object, probe and counts that go from one segment to the next.

    Attributes:
        object: (L, H, W) complex, as far as the scan has reached; None before the first segment.
        probe: (M, h, w) complex.
        zero: (2,) object pixel at which the scan's own coordinates have their zero.
        uses: (N,) int64, updates that have seen each view.
        segments: number of segments done.
    """

    object: torch.Tensor | None = None
    probe: torch.Tensor | None = None
    zero: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    uses: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    segments: int = 0


class _Part:
    """Patterns of some views of a measurement.

    Attributes:
        shape: (n, h, w).
        dtype: of the patterns.
    """

    def __init__(self, measurement: Measurement, views: np.ndarray) -> None:
        self._patterns, self._views = measurement.patterns, views
        self.shape, self.dtype = (len(views), *measurement.window), measurement.patterns.dtype

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (n, h, w) of the views with these indices (n,)."""
        return self._patterns.read(self._views[views])


def reconstruct_live(
    recipe: Recipe,
    source: FrameSource,
    folder: Path,
    options: LiveOptions,
    *,
    positions: PositionSource | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[LiveOutcome, Measurement]:
    """Reconstruct while frames arrive, and leave object and probe in FOLDER/live.h5.

    FOLDER/spool holds the frames, FOLDER/live.jsonl a line for each segment. A folder that holds frames of the same
    stream already is gone on with.

    Args:
        recipe: `data` has what the stream does not say; its first stage's engine makes the updates.
        source: of the frames.
        folder: of the run.
        options: how often views are used, and how long the source may be silent.
        positions: source of the positions, where they come apart from the frames.
        stop: asked after each segment whether to end early.
        say: told what happens, in lines.

    Returns:
        The outcome, and the scan with all its views.

    Raises:
        BadInput: engine, recipe and stream do not fit.
        Interrupted: stopped before the stream had ended; the frames so far are in the spool.
        PtymeshError: the source does not answer.
    """
    _check(recipe)
    kernel_backend(
        join("cpu").device, complex_dtype(recipe.precision)
    )  # read before the first frame has to wait for it
    with Receiver(source, folder / "spool", positions) as receiver:
        session = _Session(recipe, receiver, folder, options, stop, say)
        session.wait_for_frames()
        outcome = session.follow()
        return outcome, session.measured(outcome.views)


def _check(recipe: Recipe) -> None:
    """Raise BadInput where a recipe asks for what a stream does not allow."""
    if not recipe.stages[0].meets_new_views:
        *known, last = (name for name in ENGINES.names() if ENGINES[name].meets_new_views)
        raise BadInput(
            f"The first stage is {recipe.stages[0].name}, which remembers views or needs all of them from the start; "
            f"make it {', '.join(known)} or {last}: other stages polish the result afterwards."
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
    if recipe.probe.opr_modes:
        raise BadInput("probe.opr_modes are shares of each view, which segments do not keep; leave it out.")


class _Session:
    """A live reconstruction under way.

    Args:
        recipe: `data` has what the stream does not say; its first stage's engine makes the updates.
        receiver: fills the spool.
        folder: of the run.
        options: how often views are used, and how long the source may be silent.
        stop: asked after each segment whether to end early.
        say: told what happens, in lines.
    """

    def __init__(
        self,
        recipe: Recipe,
        receiver: Receiver,
        folder: Path,
        options: LiveOptions,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.recipe, self.receiver, self.folder = recipe, receiver, folder
        self.engine = recipe.stages[0].model_copy(update={"epochs": 1})
        self.world, self.dtype = join("cpu"), complex_dtype(recipe.precision)
        self.options, self.stop, self.say = options, stop, say
        self.state = LiveState()
        #: Seconds from arrival to the end of the first segment, of the new views of each segment.
        self.latencies: list[np.ndarray] = []
        self._silence_said = False
        #: Time (time.monotonic) of the first frames, of the next picture and of the next line.
        self._began, self._next_picture, self._next_line = 0.0, 0.0, 0.0
        self._made_model: Model | None = None

    @property
    def spool(self) -> Spool:
        """The spool, which is there once `wait_for_frames` has returned."""
        assert self.receiver.spool is not None
        return self.receiver.spool

    def wait_for_frames(self) -> None:
        """Wait until the spool holds enough frames to begin with."""
        while True:
            ended = self.receiver.ended  # before the count: no frame follows
            count = 0 if self.receiver.spool is None else self.receiver.spool.count
            if count >= FIRST or (ended and count):
                self._began = time.monotonic()
                self._next_line = self._began + SAY_S
                return
            if ended:
                raise BadInput("The stream has ended without a single frame; check the detector.")
            if self.stop():
                raise Interrupted(f"Stopped with {count} frames; the same command goes on with them.")
            self._wait(count)

    def _wait(self, count: int) -> None:
        """Wait a moment for frames, and say once if the source does not answer; count: frames so far."""
        self.receiver.check()
        silent = self.receiver.silent_s
        if silent > SILENT_S and not self._silence_said:
            waiting = f", and {late} wait for their positions" if (late := self.receiver.waiting) else ""
            self.say(
                f"The source has not answered for {SILENT_S:g} s, and is asked again and again; {count} frames so far"
                f"{waiting}."
            )
        self._silence_said = silent > SILENT_S
        timeout = self.options.timeout_s
        if timeout is not None and silent > timeout:
            raise PtymeshError(
                f"The source has not answered for {silent:.0f} s (--timeout); start it, and this command again: "
                f"the {count} frames that have arrived are kept."
            )
        time.sleep(POLL_S)

    def follow(self) -> LiveOutcome:
        """Run segments until the stream has ended and every view was used often enough."""
        state, updates, seen = self.state, 0, 0.0
        uses_at_end: np.ndarray | None = None
        with (self.folder / "live.jsonl").open("a") as log:
            while True:
                self.receiver.check()
                ended = self.receiver.ended  # before the count: no frame follows
                count = self.spool.count
                state.uses = np.concatenate((state.uses, np.zeros(count - len(state.uses), np.int64)))
                if ended and uses_at_end is None:
                    uses_at_end = state.uses.copy()
                    self._next_picture = 0.0  # people wait for what the last frames show
                views = choose_views(state.uses, self.options.uses, self.recipe.seed, state.segments)
                if len(views):
                    row = self._segment(views)
                    if row["new"]:
                        seen = time.monotonic()
                    updates += len(views)
                    log.write(json.dumps(row | {"ended": ended}) + "\n")
                    log.flush()
                    self._show(row)
                elif ended:
                    break
                else:
                    self._wait(count)
                if self.stop():
                    self._save()
                    raise Interrupted(
                        f"Stopped with {count} frames; the same command goes on with them, and live.h5 is the picture "
                        f"so far."
                    )
        done, last = time.monotonic(), self.receiver.arrivals[-1][1]
        self._save()
        assert uses_at_end is not None
        if missing := self.spool.missing():
            self.say(
                f"{missing} frames before the last one have not come here, by the detector's count; see whether "
                "another program takes from the same stream, or a receiver was killed."
            )
        outcome = LiveOutcome(
            len(state.uses),
            state.uses,
            uses_at_end,
            np.concatenate(self.latencies),
            done - self._began,
            done - last,
            max(0.0, seen - last),
            updates / max(done - self._began, 1e-9),
        )
        (self.folder / "live.json").write_text(json.dumps(outcome.summary(), indent=1) + "\n")
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
        made = measurement_of(self.spool.scan(count), self.recipe.data, self.recipe.positions, f"live-{count}")
        return replace(made, checks=NO_CHECKS)

    def _model(self, geometry: Geometry) -> Model:
        """Return the forward model, the same in all segments."""
        made, options = self._made_model, self.recipe.object
        if made is None:
            made = self._made_model = Model.for_geometry(
                geometry,
                subpixel=self.recipe.positions.subpixel,
                optics=tuple(self.recipe.optics.values()),
                slices=SliceStack(options.slices, options.slice_spacing_m or 0.0, options.tilt_rad or (0.0, 0.0)),
                dtype=self.dtype,
                device=self.world.device,
            )
        return made

    def _segment(self, views: np.ndarray) -> dict[str, object]:
        """Run one epoch over some views, from where the segment before has led.

        Args:
            views: (n,) int64, ascending.

        Returns:
            A line of live.jsonl.
        """
        state, recipe = self.state, self.recipe
        whole = self.measured(len(state.uses))
        part = replace(
            whole,
            patterns=_Part(whole, views),
            positions=whole.positions[views],
            stored_positions=None,
            steps=None,
            paths=None if whole.paths is None else whole.paths[views],
            intensity=None if whole.intensity is None else whole.intensity[views],
        )
        problem = Problem(self._model(whole.geometry), part, Replicated(self.world, part.positions), self.dtype)
        first = state.object is None or state.probe is None
        estimate = initial_estimate(
            part,
            mean_pattern(problem) if first else np.ones(part.window),
            object=recipe.object if first else recipe.object.model_copy(update={"initial": "ones"}),
            probe=recipe.probe if first else recipe.probe.model_copy(update={"start": DataStart(kind="data")}),
            precision=recipe.precision,
            device=self.world.device,
            margin_px=MARGIN_PX,
            seed=recipe.seed,
            optics=tuple(recipe.optics.values()),
        )
        zero = np.round(np.array(estimate.origin)).astype(np.int64)
        if state.object is not None and state.probe is not None:
            paste(state.object, estimate.object, zero - state.zero)
            estimate.probe.copy_(state.probe)
        loop = Loop(problem, RunState(estimate), [self.engine], seed=recipe.seed + state.segments)
        residual = [report.residual for report in loop.epochs()][-1]
        state.object, state.zero = join_part(state.object, state.zero, estimate.object, zero)
        state.probe = estimate.probe.clone()
        new = views[state.uses[views] == 0]
        waited = time.monotonic() - self.receiver.arrival_times(new)
        self.latencies.append(waited[np.isfinite(waited)])
        state.uses[views] += 1
        state.segments += 1
        late = self.latencies[-1]
        return {
            "segment": state.segments,
            "frames": len(state.uses),
            "views": len(views),
            "new": len(new),
            "unseen": int((state.uses == 0).sum()),
            "least_uses": int(state.uses.min()),
            "mean_uses": round(float(state.uses.mean()), 4),
            "latency_s": round(float(np.median(late)), 4) if len(late) else None,
            "residual": float(residual),
            "seconds": round(time.monotonic() - self._began, 4),
        }

    def _save(self) -> None:
        """Write the object and the probe as they are to live.h5."""
        state = self.state
        if state.object is None or state.probe is None:
            return
        scan = self.measured(len(state.uses))
        pixel = scan.geometry.object_pixel_m
        attrs = {
            "engine": self.engine.name,
            "segments": state.segments,
            "frames": len(state.uses),
            "seconds": time.monotonic() - self._began,
            "propagation": scan.geometry.propagation,
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
        ).save(self.folder / "live.h5")

    def _progress(self, row: dict[str, object]) -> str:
        """Return a line on how far the reconstruction is; row: as in live.jsonl."""
        recent = np.concatenate(self.latencies[-20:])
        late = f"  frames are used {np.median(recent):.2f} s after they arrive" if len(recent) else ""
        unseen = f", {row['unseen']} of them not used yet" if row["unseen"] else ""
        return f"{row['frames']} frames{unseen}  residual {row['residual']:.4f}{late}"


def choose_views(uses: np.ndarray, wanted: int, seed: int, segment: int) -> np.ndarray:
    """Return the views of the next segment: new ones, then those that fewest updates have seen.

    Args:
        uses: (N,) int64, updates that have seen each view.
        wanted: number of updates that are to see each view.
        seed: of the random choice among equals.
        segment: number of the segment.

    Returns:
        (n,) int64, ascending; none where all views have been used often enough.
    """
    new = np.flatnonzero(uses == 0)
    if len(new) >= SEGMENT:
        return new[:LARGEST]
    old = np.flatnonzero((uses > 0) & (uses < wanted))
    order = np.lexsort((np.random.default_rng([seed, segment, 1]).random(len(old)), uses[old]))
    return np.sort(np.concatenate((new, old[order[: SEGMENT - len(new)]])))
