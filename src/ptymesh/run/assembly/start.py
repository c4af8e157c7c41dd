"""Start of a reconstruction: the scan as checks have left it, its patterns read, a model of it and a first estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ptymesh.distributed.devices import one_thread
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.panels import Panels
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.world import World
from ptymesh.engines import Adam, Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import REACH
from ptymesh.io.checkpoint.store import Checkpoint
from ptymesh.io.joint_scans import lay_side_by_side
from ptymesh.io.prepare.findings import apply_findings
from ptymesh.kernels.piece_costs import costs_of_pieces
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.models.tilted_surface import refuse_bent_patterns
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.model import Model, SliceStack, Subpixel
from ptymesh.physics.object_modes import with_object_modes
from ptymesh.physics.operators import Piece, pieces_for_scan
from ptymesh.physics.scan_energies import with_energies
from ptymesh.planning.layout_choice import ALONE, choose_layout
from ptymesh.planning.plan import scan_of
from ptymesh.problem import Problem
from ptymesh.problem.counts import mean_patterns
from ptymesh.recipe.initial import MARGIN_PX, StartSettings, frame, initial_estimate
from ptymesh.recipe.magnitudes import refuse_spacing
from ptymesh.recipe.python_arguments import join_scans
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.registry import with_article
from ptymesh.run.assembly.data_checks import READING, check_after_reading, check_before_reading, checked_scans, watched
from ptymesh.run.assembly.refusals import doubt_of_scans_apart, refuse_energies, refuse_own_probes
from ptymesh.run.assembly.rounding_check import warn_of_rounding
from ptymesh.run.checkpoint_counters import counters_of
from ptymesh.run.memory import check_object
from ptymesh.run.state import RunState
from ptymesh.storage.memory_budget import MemoryBudget
from ptymesh.types import Precision, complex_dtype

LayoutOption = Literal["auto", "replicated", "tiled"]

Made = TypeVar("Made")


@dataclass(frozen=True)
class StartOptions:
    """Options of a reconstruction, which have been checked; see `Reconstruction`.

    Attributes:
        object, probe: initial guesses.
        pieces: of the model, as a recipe asks for them.
        subpixel: how fractions of a pixel act.
        precision: of all computations.
        seed: of batches and initial modes.
        layout: what a rank holds of the object.
        in_own_memory: True if all of it lies in memory that the rank shares with no other (with layout "replicated").
        planned: the engine that runs first; None if it is not known.
        memory: what patterns may take.
    """

    object: ObjectOptions
    probe: ProbeOptions
    pieces: Sequence[Piece]
    subpixel: Subpixel
    precision: Precision
    seed: int
    layout: LayoutOption
    in_own_memory: bool
    planned: Engine | None
    memory: MemoryBudget

    @property
    def is_related(self) -> bool:
        """True if neighbouring positions are of views that share some of the object."""
        return not any(piece.name == "rpi" for piece in self.pieces)

    @property
    def planes(self) -> int:
        """Number of planes of the object."""
        return self.object.slices * self.object.modes


@dataclass
class Start:
    """Checked scan, problem and state with which a reconstruction begins.

    Attributes:
        scan: as checks have left it.
        unchecked: the scan before these checks.
        problem: with the patterns of this rank's views.
        state: of a run that has not begun, or goes on from a checkpoint.
        findings: sentences on what checks have led to, and on what pieces of the model take from the data and cost.
        layout_why: reason for the layout.
        pieces: of the model, by name, with the options that they take from the scan.
    """

    scan: Measurement
    unchecked: Measurement
    problem: Problem
    state: RunState
    findings: list[str]
    layout_why: str
    pieces: dict[str, Piece]


def join_checked_scans(
    scans: Sequence[Measurement], options: StartOptions, world: World
) -> tuple[Measurement, list[str]]:
    """Return several scans as one, each as checks of it alone leave it, and their sentences. Collective.

    Args:
        scans: as they were read.
        options: of the reconstruction.
        world: the ranks.

    Raises:
        BadInput: the data cannot be, or cannot be joined.
    """
    with world.heartbeat.doing("read"):
        checked, sentences = checked_scans(
            scans, world, related=options.is_related, near_field=binning_of(options.pieces) == 1
        )
        joined = world.on_all_ranks(lambda: join_scans(checked), READING)
    return (lay_side_by_side(joined) if options.object.scans == "own" else joined), sentences


class Assembler:
    """Makes the start of a reconstruction of a scan, or refuses what does not fit together. Collective.

    Args:
        scan: one, or several that were joined.
        options: of the reconstruction.
        world: the ranks.
        of_scans: sentences on each of the scans that were joined.

    Raises:
        BadInput: options and scan do not fit.
    """

    def __init__(self, scan: Measurement, options: StartOptions, world: World, of_scans: Sequence[str] = ()) -> None:
        self.scan, self.options, self.world = scan, options, world
        self.dtype = complex_dtype(options.precision)
        pieces, obj = options.pieces, options.object
        if scan.further_distance_m is not None and not any(one.name == "view_distance" for one in pieces):
            raise BadInput(
                "The distances of the scans differ, which is a piece of the model; add optics: {view_distance: true}, "
                "or reconstruct each by itself."
            )
        if scan.interaction_ratios is not None:
            refuse_energies(scan, obj, pieces)
        refuse_bent_patterns(scan.geometry, pieces)
        self.pieces, chosen = self._on_all_ranks(lambda: pieces_for_scan(pieces, scan))
        self.sentences = [*of_scans, *chosen]
        if scan.window != scan.mask.shape:
            raise BadInput(f"The geometry is for windows of {scan.window}, the patterns are {scan.mask.shape}.")
        #: Pixels of the model along a side of one of the detector's.
        self.binning = binning_of(self.pieces)
        if self.binning > 1 and scan.displaced_px is not None:
            raise BadInput(
                "Objects of single scans lie a window of the detector apart, and optics.binned_detector makes windows "
                "wider; use object.scans: shared, or reconstruct each by itself."
            )
        self.layout_why = "asked for"
        warn_of_rounding(world, self.dtype)

    def make_start(self, say: Callable[[str], None]) -> Start:
        """Return a start with a first estimate. Collective.

        Args:
            say: called on the first rank with each sentence on what checks of the data have led to.
        """
        options, world, scan = self.options, self.world, self.scan
        if options.object.slice_spacing_m is not None:
            refuse_spacing(scan.geometry, options.object.slice_spacing_m)
        model, has_checks = self._make_model(), scan.checks != NO_CHECKS
        related = options.is_related and scan.scan_index is None
        findings = list(self.sentences)
        with world.heartbeat.doing("read"):
            if has_checks:
                scan, found_before = check_before_reading(scan, world, related=related, near_field=self.binning == 1)
                findings += found_before
        owners = self._choose_layout(scan)
        with world.heartbeat.doing("read"):
            source, gathered = watched(scan) if has_checks else (scan, None)
            problem = self._read(model, source, owners)
            findings += costs_of_pieces(problem.backend, model, problem.window)
            means = mean_patterns(problem)
            if gathered is not None:
                later_findings = check_after_reading(scan, gathered, means[0], world, related=related)
                findings += later_findings.sentences
                if later_findings.changes:
                    problem.loader.patterns.close()
                    del problem  # free the memory of its patterns, which are read again
                    scan = apply_findings(scan, later_findings)
                    owners = self._choose_layout(scan)
                    problem = self._read(model, scan, owners)
                    means = mean_patterns(problem)
            for sentence in findings if world.rank == 0 else ():
                say(sentence)
            with one_thread():  # large sums and decompositions depend on the number of threads
                estimate = self._on_all_ranks(
                    lambda: initial_estimate(
                        scan.divided(self.binning),
                        means if self._has_own_probes else means[0],
                        StartSettings(options.precision, world.device, MARGIN_PX, options.seed, owners.place),
                        object=options.object,
                        probe=options.probe,
                        optics=self.pieces,
                    )
                )
        if apart := doubt_of_scans_apart(scan, estimate):
            findings.append(apart)
            if world.rank == 0:
                say(apart)
        owners.fill_halo(estimate.object)
        return self._start(scan, problem, RunState(estimate), findings)

    def restore_start(self, saved: Checkpoint) -> Start:
        """Return a start where a checkpoint has left off. Collective.

        Raises:
            BadInput: the checkpoint is of another object.
        """
        options, model = self.options, self._make_model()
        owners = self._choose_layout(self.scan, saved)
        with self.world.heartbeat.doing("read"):
            problem = self._read(model, self.scan, owners)
            state = RunState.load(saved, problem)
        kind = state.estimate.object_kind
        if kind != options.object.kind:
            raise BadInput(f"The checkpoint holds {with_article(kind)}; go on with object: {{kind: {kind}}}.")
        if len(state.estimate.object) != options.planes:
            raise BadInput(
                f"The checkpoint's object has {len(state.estimate.object)} planes, and the recipe asks for "
                f"{options.object.modes} modes of {options.object.slices} slices; go on with the run's own "
                "object.modes and object.slices."
            )
        owners.fill_halo(state.estimate.object)
        return self._start(self.scan, problem, state, list(self.sentences))

    def _start(self, scan: Measurement, problem: Problem, state: RunState, findings: list[str]) -> Start:
        pieces = {piece.name: piece for piece in self.pieces}
        return Start(scan, self.scan, problem, state, findings, self.layout_why, pieces)

    @property
    def _has_own_probes(self) -> bool:
        return self.options.probe.scans == "own"

    def _make_model(self) -> Model:
        """Return the model of the scan."""
        scan, obj = self.scan, self.options.object
        model = Model.for_geometry(
            scan.geometry.binned(1 / self.binning),
            subpixel=self.options.subpixel,
            optics=with_energies(with_object_modes(self.pieces, obj.modes), scan),
            slices=SliceStack(obj.slices, obj.slice_spacing_m or 0.0, obj.tilt_rad or (0.0, 0.0)),
            dtype=self.dtype,
            device=self.world.device,
        )
        if self._has_own_probes:
            refuse_own_probes(scan, obj, self.options.probe, self.pieces, self.world)
        return model

    def _choose_layout(self, scan: Measurement, saved: Checkpoint | None = None) -> Replicated | Tiled:
        """Return the layout: which rank owns which views of a scan, and what it holds of the object. Collective."""
        options, world, layout = self.options, self.world, self.options.layout
        modelled = scan.divided(self.binning)
        waves = (options.probe.modes or 1) + options.probe.opr_modes
        self._on_all_ranks(lambda: check_object(world, modelled, options.planes, self.dtype, layout, MARGIN_PX, waves))
        if layout == "auto" and saved is not None and world.size > 1:
            layout, self.layout_why = counters_of(saved.meta).layout, "as before"
        if layout == "auto" and world.size == 1:
            layout, self.layout_why = ALONE
        if layout == "auto":
            planned = scan_of(
                scan, options.object, options.probe, options.subpixel, options.precision, MARGIN_PX, self.pieces
            )
            layout, self.layout_why = choose_layout(world, planned, options.planned or Adam(), options.seed)
        positions, window = modelled.positions, modelled.window
        if layout == "replicated":  # with owners as the first stage needs them, so that patterns are read there
            if options.in_own_memory:
                return Replicated(world, positions)
            compact = options.planned is not None and options.planned.order == "compact"
            extent = frame(positions, window, max(MARGIN_PX, REACH))[1]
            extent = extent if saved is None else counters_of(saved.meta).extent
            if Panels.fit(world, extent):
                return Panels(world, positions, window, compact)
            return Replicated(world, positions, compact)
        tiled = Tiled(world, positions, window)
        if saved is not None and saved.ranks == world.size and counters_of(saved.meta).layout == "tiled":
            tiled.assign(saved.owner)  # the owners that views had
        return tiled

    def _read(self, model: Model, scan: Measurement, owners: Replicated | Tiled) -> Problem:
        """Return the problem of a scan, with the patterns that this rank reads. Collective."""
        modelled, options = scan.divided(self.binning), self.options
        halves = options.precision == "mixed"
        return self._on_all_ranks(
            lambda: Problem(model, modelled, owners, self.dtype, options.memory, halves, self._has_own_probes)
        )

    def _on_all_ranks(self, make: Callable[[], Made]) -> Made:
        return self.world.on_all_ranks(make, READING)
