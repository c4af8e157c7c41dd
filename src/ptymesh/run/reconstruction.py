"""Reconstruction that a person can look into, from Python.

    recon = pm.Reconstruction(pm.load("scan.cxi"), probe_modes=3)
    for report in recon.run(pm.RPIE(epochs=50, batch=64)):
        print(report)
    recon.result().save("result.h5")

The same lines run on several ranks under torchrun: every rank holds its own views and the same estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_args

import numpy as np
import torch

from ptymesh.displayed import Displayed
from ptymesh.distributed.agreement import flatten, refuse_differences
from ptymesh.distributed.joining import join
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.program import on_first_rank
from ptymesh.distributed.rank_info import world
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.engines.remarks import remarks_on_stage
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import identity
from ptymesh.io.checkpoint.store import Checkpoint
from ptymesh.io.joint_scans import lay_side_by_side
from ptymesh.io.results import CHANGE, ObjectTiles, Result
from ptymesh.measurement import Measurement
from ptymesh.paths import usable
from ptymesh.physics.fidelity import fidelity_of
from ptymesh.physics.model import Subpixel
from ptymesh.recipe.python_arguments import (
    Stage,
    join_scans,
    memory_of,
    operators_of,
    options_of,
    scans_from,
    seed_of,
    stages_of,
)
from ptymesh.recipe.schema import default_stages
from ptymesh.recipe.starts import FileStart, ObjectOptions, ProbeOptions
from ptymesh.run.assembly.data_checks import READING, to_stderr
from ptymesh.run.assembly.rank_facts import REMEDY, file_facts, optics_facts, scan_facts, stage_facts
from ptymesh.run.assembly.refusals import refuse_moves_of_all, refuse_shift_of_scans_apart
from ptymesh.run.assembly.start import Assembler, LayoutOption, StartOptions, join_checked_scans
from ptymesh.run.final_verdict import EstimateJudge
from ptymesh.run.loop import Loop
from ptymesh.run.memory import retry_out_of_memory
from ptymesh.run.result_fields import describe_object, describe_wraps, fields_of_result
from ptymesh.run.surroundings import refuse_surroundings
from ptymesh.run_folder.reports import Callback, EpochReport, Traffic
from ptymesh.sentences import quote
from ptymesh.types import Precision
from ptymesh.unknowns import OTHERS
from ptymesh.verdict.convergence import judge_convergence
from ptymesh.verdict.floor import NoiseFloor, count_fitted, measure_noise_floor
from ptymesh.verdict.held_out import Judged, judge_held_out, own_unknowns
from ptymesh.verdict.signs import Sign
from ptymesh.verdict.term_trial import judge_terms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Made = TypeVar("Made")

#: Views that a result's attributes name as not explained, at most.
MOST_NAMED = 64
#: Epochs, views of a batch and share of held-out views of a short run that tries something on a part of the scan.
TRIAL_EPOCHS, TRIAL_BATCH, TRIAL_HELD_OUT = 12, 16, 0.1
Reports = Iterator[EpochReport]


class Reconstruction(Displayed):
    """A scan, what is being solved for, and the engines' memories between calls of `run`.

    Args:
        scan: what `ptymesh.load` returned, or the path that it would be given; or a list of several scans of one
            object, whose positions count in one frame.
        object, probe: initial guesses, as options or as a dict of a recipe's keys; `probe_modes` is short for
            probe={"modes": n}.
        subpixel: how fractions of a pixel act.
        optics: operators between probe and detector by name, as options or as a dict of a recipe's keys.
        precision: single, mixed (single, but waves that engines keep of views are halves) or double.
        seed: of batches and initial modes.
        device: auto, cpu, cuda, cuda:N; or a World that was joined before.
        layout: what a rank holds of the object: all of it (replicated), or what its own views see (tiled); auto takes
            what fits, and what is expected to be faster, for the engine `planned` (default Adam), which runs first.
        memory_budget: what each rank's patterns may take (4e9 or "4GB"), the device's or the host's memory; beyond it,
            they are staged in a file in `scratch` (a folder; the system's for temporary files) until `close`.
        saved: a checkpoint to go on from; other_data: even if it was made with other data than `scan`.
        say: told, on the first rank, what checks of the data have led to (views left out, pixels masked); the scan's
            `checks` says which are wanted, as in `ptymesh.load(path, checks="off")`.

    Raises BadInput where options and scan do not fit, or the scan is not that of the checkpoint.
    """

    displayed_by: ClassVar[str] = "ptymesh.notebook.reconstructions"

    def __init__(
        self,
        scan: Measurement | str | Path | Sequence[Measurement | str | Path],
        *,
        probe_modes: int | None = None,
        object: ObjectOptions | dict[str, Any] | None = None,
        probe: ProbeOptions | dict[str, Any] | None = None,
        subpixel: Subpixel = "fourier",
        optics: dict[str, Any] | None = None,
        precision: Precision = "single",
        seed: int = 0,
        device: str | World = "auto",
        layout: LayoutOption | type[Replicated] = "auto",
        planned: Engine | None = None,
        memory_budget: int | str | None = None,
        scratch: str | Path | None = None,
        saved: Checkpoint | None = None,
        other_data: bool = False,
        say: Callable[[str], None] = to_stderr,
    ) -> None:
        refuse_surroundings()
        in_own_memory = layout is Replicated
        layout = cast(LayoutOption, "replicated" if in_own_memory else layout)
        for name, word, words in (
            ("precision", precision, get_args(Precision)),
            ("subpixel", subpixel, get_args(Subpixel)),
            ("layout", layout, get_args(LayoutOption)),
        ):
            if not isinstance(word, str) or word not in words:
                raise BadInput(f"{name} is {quote(word)}; give {', '.join(words[:-1])} or {words[-1]}.")
        scans, seed = scans_from(scan), seed_of(seed)
        scan = join_scans(scans)
        object_options = object if isinstance(object, ObjectOptions) else options_of(ObjectOptions, object, "object")
        probe_options = probe if isinstance(probe, ProbeOptions) else options_of(ProbeOptions, probe, "probe")
        if probe_modes is not None:
            if "modes" in probe_options.model_fields_set and probe_options.modes != probe_modes:
                raise BadInput(f"probe_modes is {quote(probe_modes)}, and probe.modes {probe_options.modes}; give one.")
            probe_options = options_of(ProbeOptions, {**probe_options.model_dump(), "modes": probe_modes}, "probe")
        if not isinstance(device, str | World):
            raise BadInput(
                f"device is {quote(device)}; give auto, cpu, cuda, cuda:N, or a World that was joined before."
            )
        if planned is not None and not isinstance(planned, Engine):
            raise BadInput(f"planned is {quote(planned)}; give an engine, such as ptymesh.RPIE().")
        options = StartOptions(
            object=object_options,
            probe=probe_options,
            pieces=operators_of(optics),
            subpixel=subpixel,
            precision=precision,
            seed=seed,
            layout=layout,
            in_own_memory=in_own_memory,
            planned=planned,
            memory=memory_of(memory_budget, scratch),
        )
        #: Options by which a part of the scan is reconstructed alike.
        self._options: dict[str, Any] = {
            "object": object_options,
            "probe": probe_options,
            "subpixel": subpixel,
            "optics": optics,
            "precision": precision,
            "seed": seed,
            "scratch": scratch,
        }
        if object_options.scans == "own":
            scan = lay_side_by_side(scan)
        self.scan, self.seed, self.precision, self.subpixel = scan, seed, precision, subpixel
        self.world = device if isinstance(device, World) else join(device)
        self._compare_options(
            {
                "seed": seed,
                "precision": precision,
                "subpixel": subpixel,
                "layout": layout,
                "object": object_options.model_dump(mode="json"),
                "probe": probe_options.model_dump(mode="json"),
                "optics": optics_facts(optics),
                "planned": stage_facts(planned),
                "a checkpoint": saved is not None,
                "other_data": other_data,
            }
        )
        of_scans: list[str] = []
        if len(scans) > 1 and saved is None:
            self.scan, of_scans = join_checked_scans(scans, options, self.world)
        self.stages: list[Engine] = []
        #: Stages of a recipe that names none, for this object and probe.
        self.default_stages = stages_of(default_stages(object_options, probe_options))
        #: Called after batches and epochs of stages that `run` runs.
        self.callbacks: Sequence[Callback] = ()
        #: Number of calls of `run` that have begun.
        self._runs = 0
        #: Traffic of this rank within the batches of the last loop that was recorded here.
        self.traffic = Traffic()
        self.started = datetime.now(UTC)
        self._identity: dict[str, str] = {}
        self._noise: tuple[NoiseFloor | None] | None = None
        #: (n,) int64, views that no update of the last loop has seen.
        self._held_out = np.empty(0, dtype=np.int64)
        #: Looks for a sign of a wrong model by short runs, where the verdict would be good all the same.
        self.trial: Callable[[], Sign | None] | None = None
        self._fitted_count: tuple[int, int] | None = None  # epochs after which it was counted, and the count
        if saved is not None and not other_data and "data" in saved.meta:
            self._identity = self._everywhere(lambda: identity.check(saved.meta["data"], self.scan, self.world))
        #: True if neighbouring views are of neighbouring places, in the order of one scan.
        self._related = options.is_related and self.scan.scan_index is None
        assembler = Assembler(self.scan, options, self.world, of_scans)
        start = assembler.make_start(say) if saved is None else assembler.restore_start(saved)
        self.scan, self.problem, self.state = start.scan, start.problem, start.state
        #: The scan before checks of its data.
        self.unchecked = start.unchecked
        #: Sentences on what checks of the data have led to, and on what pieces of the model take from it and cost.
        self.findings = start.findings
        self.layout_why = start.layout_why
        #: Pieces of the model by name, with the options that they take from the scan.
        self.optics = start.pieces
        if object_options.result_positions and saved is None and self.world.rank == 0:
            say(_positions_of_result(object_options.initial, self.state.estimate, self.scan))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies, pickles included: a copy's problem and state would not move with each other."""
        raise BadInput(
            "A Reconstruction cannot be copied or pickled; save its result, or make another one with the same scan and "
            "seed and run the same stages, which leads to the same bits."
        )

    def __repr__(self) -> str:
        history, done = self.state.history, self.state.done_epochs
        residual = f", residual {history['residual'][-1]:.4g}" if done else ""
        return (
            f"<Reconstruction of {self.scan.name}: {self.scan.views} views, "
            f"{done} epoch{'s' * (done != 1)} done{residual}>"
        )

    def _compare_options(self, options: dict[str, Any]) -> None:
        """Raise BadInput on all ranks where they are given different scans or options. Collective."""
        if self.world.size == 1:
            return
        with self.world.heartbeat.doing("read"):
            facts = flatten(options)
            for key in ("object.initial", "probe.start.path"):
                facts |= file_facts(key, facts.get(key))
            facts |= self._everywhere(lambda: scan_facts(self.scan))
            refuse_differences(self.world, facts, REMEDY)

    def _compare_call(self, call: str, options: dict[str, object] | None = None) -> None:
        """Raise BadInput on all ranks where one of them does something else. Collective.

        Args:
            call: what this rank does now.
            options: with which it does so.
        """
        facts = {"the call": call, "stages done": str(len(self.stages)), **flatten(options or {}, call)}
        refuse_differences(self.world, facts, REMEDY)

    def identity(self, extent: identity.Extent = "sample") -> dict[str, str]:
        """Return digests by which a checkpoint tells whether it is given the same scan again. Collective."""
        if self._identity.get("extent") != extent:
            self._identity = self._everywhere(lambda: identity.digests_of_scan(self.scan, extent, self.world))
        return self._identity

    @property
    def noise(self) -> NoiseFloor | None:
        """Residual that counting leaves, estimated from the counts; None where patterns are no counts.

        Collective when it is asked for the first time.
        """
        if self._noise is None:
            self._noise = (self._everywhere(lambda: measure_noise_floor(self.problem)),)
        return self._noise[0]

    @property
    def noise_floor(self) -> float | None:
        """Least residual that counting explains of a fit; None where patterns are no counts.

        The fit is that of the unknowns that have moved (object and probe, before anything has). Collective where epochs
        were run since it was last asked.
        """
        return None if self.noise is None else self.noise.fitted(self._count_fitted())

    @property
    def noise_level(self) -> float | None:
        """Residual that counting alone makes of the true intensities; None where patterns are no counts.

        Collective at first.
        """
        return None if self.noise is None else self.noise.spread

    def _count_fitted(self) -> int:
        """Return how many real numbers were fitted. Collective where epochs were run since it was last asked."""
        epochs = self.state.done_epochs
        if self._fitted_count is None or self._fitted_count[0] != epochs:
            moved = {name for name, column in self._history().items() if name.startswith(CHANGE) and np.nansum(column)}
            moved = {name.removeprefix(CHANGE) for name in moved} or {"object", "probe"}
            optics = self.problem.model.unknowns
            moved = moved.union(*(stage.moved_optics(optics) for stage in self.stages))
            limits = self.stages[-1].object.amplitude if self.stages else None
            is_fixed = limits is not None and limits.low is not None and limits.low == limits.high
            values = self.state.estimate.object_values
            count = count_fitted(
                self.problem,
                self.state.estimate,
                moved - self.problem.model.replaced,
                phase_only=is_fixed or (values is not None and not values.is_complex()),
            )
            self._fitted_count = epochs, count
        return self._fitted_count[1]

    def close(self) -> None:
        """Let go of a file in which patterns are staged; that happens by itself when nobody holds this any more."""
        self.problem.loader.patterns.close()

    def _everywhere(self, make: Callable[[], Made]) -> Made:
        """Return what `make`, which reads data, returns; where it fails on any rank, every rank raises. Collective."""
        return self.world.on_all_ranks(make, READING)

    def loop(self, **watch: Any) -> Loop:
        """Return the loop over what is left of `stages`; `watch` as in `Loop`. Collective."""
        if self._fitted_count is None:  # counted once: each count takes a pass over all views
            self._count_fitted()
        floor = None if self.noise is None or self._fitted_count is None else self.noise.fitted(self._fitted_count[1])
        watch |= {"noise_floor": floor, "noise_level": self.noise_level}
        if self.scan.displaced_px is not None:
            refuse_moves_of_all(self.stages)
        refuse_shift_of_scans_apart(self.scan, self.state.estimate, self.stages)
        if self._related:
            watch["judge_terms"] = partial(judge_terms, self.scan, self._judge_part)
        loop = Loop(self.problem, self.state, self.stages, seed=self.seed, **watch)
        self._held_out = loop.held_out
        return loop

    def remarks(self, first: int = 0) -> list[str]:
        """Return sentences on options of `stages` that cannot do all that they say. Collective.

        Args:
            first: of the stages that are looked at.
        """
        looked_at = self.stages[first:]
        are_counts = any(fidelity_of(stage.fidelity).needs_counts for stage in looked_at) and self.noise is not None
        return [
            sentence
            for index, stage in enumerate(looked_at, first)
            for sentence in remarks_on_stage(stage, index, self.problem.model.unknowns, are_counts=are_counts)
        ]

    def run(self, engine: Stage | Sequence[Stage], epochs: int | None = None, batch: int | None = None) -> Reports:
        """Run one more stage, or several, yielding after each epoch; an engine used before goes on with its memory.

        Args:
            engine: an engine, or a dict as in a recipe, {"engine": "rpie", "epochs": 50}; or a list of them.
            epochs: instead of the engine's own.
            batch: views of a batch, instead of the engine's own.

        Raises:
            BadInput: options do not fit.
            Diverged: the residual left the numbers.
        """
        changes = {name: value for name, value in (("epochs", epochs), ("batch", batch)) if value is not None}
        stages = stages_of(engine)
        return self._run([options_of(type(one), {**one.model_dump(), **changes}, one.name) for one in stages])

    def _run(self, stages: Sequence[Engine]) -> Reports:
        """Run these stages; raise BadInput when asked for more after another call of `run` has begun."""
        self._runs += 1
        number_of_run = self._runs
        refuse_surroundings()
        for stage in stages:
            for report in self._stage(stage):
                yield report
                refuse_surroundings()
                if self._runs != number_of_run:
                    raise BadInput(
                        "Another call of run has begun on this Reconstruction, in the middle of the stage "
                        f"{stage.name} of this one; go through one to its end, or leave it, before another begins."
                    )

    def _stage(self, stage: Engine) -> Reports:
        for index, earlier in enumerate(self.stages):
            if earlier.name == stage.name:
                self.state.engines[len(self.stages)] = self.state.engines.get(index, {})
        if self.stages and self.stages[-1].name == stage.name:
            self.state.per_view[len(self.stages)] = self.state.per_view.get(len(self.stages) - 1, {})
        self._compare_call(f"stages.{len(self.stages)}", stage_facts(stage))
        self.state.stage, self.state.epoch = len(self.stages), 0
        self.stages.append(stage)
        try:
            loop = self.loop(callbacks=self.callbacks)
        except BadInput:  # so that a later call can run another stage
            self.stages.pop()
            raise
        for sentence in self.remarks(len(self.stages) - 1):
            if self.world.rank == 0:
                to_stderr(sentence)
        yield from loop.epochs()

    @property
    def object(self) -> np.ndarray:
        """Object as the last epoch left it, (L, H, W) complex; with tiles, the part that this rank holds."""
        return self._to_host(self.problem.layout.last_filled(self.state.estimate.object))

    @property
    def probe(self) -> np.ndarray:
        """Probe modes as they are now, (M, h, w) complex; of S scans with probes of their own, (S M, h, w)."""
        return self._to_host(self.state.estimate.probe)

    def _to_host(self, tensor: torch.Tensor) -> np.ndarray:
        """Return a tensor's values on the host; out of memory on the device, after caches have given some back."""
        return retry_out_of_memory(self.problem, lambda: tensor.cpu().numpy())

    def result(self, recipe: str = "") -> Result:
        """Return the result with its final (frozen) residual: one pass over all views. Collective.

        Every rank gets the whole object; `save` writes it without that.
        """
        refuse_surroundings()
        self._compare_call("result")
        fields, estimate = self._fields(), self.state.estimate
        full_fields = {name: self.problem.layout.gather_whole(field, estimate) for name, field in fields.items()}
        return self._result({name: self._to_host(field) for name, field in full_fields.items()}, recipe)

    def _fields(self) -> dict[str, torch.Tensor]:
        """Return this rank's parts of the result's fields, (..., H, W), by name; say where phases wrap. Collective."""
        fields = fields_of_result(self.problem, self.state.estimate)
        if "potential" in fields and self.scan.interaction_ratios is not None:
            wrapped = describe_wraps(self.problem, self.state.estimate)
            if wrapped and not any(one.startswith(wrapped.split(",")[0]) for one in self.findings):
                self.findings.append(wrapped)
                if self.world.rank == 0:
                    to_stderr(wrapped)
        return fields

    def save(self, path: str | Path, recipe: str = "", attrs: Mapping[str, object] | None = None) -> Result:
        """Write the result, of which the first rank never holds more than a tile of the object at a time. Collective.

        Args:
            path: of the file.
            recipe: YAML that the result holds.
            attrs: more attributes.

        Returns:
            The result, whose `object` is the part that this rank holds.

        Raises:
            PtymeshError: on every rank, where the disk refuses.
        """
        path = usable(path, "The result")
        refuse_surroundings()
        self._compare_call("save")
        estimate = self.state.estimate
        fields = self._fields()
        result = self._result({name: self._to_host(field) for name, field in fields.items()}, recipe)
        result.attrs |= attrs or {}
        streams = {name: self.problem.layout.stream(field, estimate) for name, field in fields.items()}
        failure = None
        try:
            if self.world.rank == 0:
                result.save(path, {name: self._tiles(stream) for name, stream in streams.items()})
        except Exception as error:
            failure = error
        for stream in streams.values():
            for _ in stream:  # other ranks send their tiles while the first one writes
                pass
        self.world.raise_if_any_failed(failure, "saving the result")
        return result

    def judge_stage(self, stage: Engine, hold_out: float) -> Judged:
        """Run a stage, and return how well it explains the views that it was not shown.

        Args:
            stage: the engine, with its epochs.
            hold_out: share of the views that is held out.

        Raises:
            Diverged: the residual left the numbers.
        """
        self.stages = [stage]
        loop = self.loop(hold_out=hold_out)
        loop.run()
        unknowns = own_unknowns([stage], self.problem.model.unknowns, len(self.state.estimate.opr))
        unknowns -= {"positions"} if self.state.refused_positions else set()
        return judge_held_out(self.problem, self.state.estimate, loop.held_out, unknowns)

    def _judge_part(self, part: Measurement, stage: Engine | None = None, probe: np.ndarray | None = None) -> Judged:
        """Return how well a short run explains held-out views of a part of the scan, on this rank alone.

        Args:
            part: some views.
            stage: what is run from an empty object; None for the last default stage, from where the recipe starts.
            probe: (M, h, w) complex, that it starts from; None for the recipe's.
        """
        options = self._options
        if stage is not None:
            empty = {"initial": "ones", "initial_depth_m": None, "result_positions": False}
            options = options | {"object": options["object"].model_copy(update=empty)}
        if probe is not None:
            start_options = {"start": FileStart(kind="file"), "modes": len(probe), "opr_modes": 0}
            options = options | {"probe": options["probe"].model_copy(update=start_options)}
            part = replace(part, probe=probe)
        with closing(Reconstruction(part, **options, device=World("cpu"), say=lambda _: None)) as recon:
            if stage is None:
                last = recon.default_stages[-1]
                stage = type(last).parse({**last.model_dump(), "epochs": TRIAL_EPOCHS, "batch": TRIAL_BATCH})
            return recon.judge_stage(stage, TRIAL_HELD_OUT)

    def _tiles(self, stream: Iterator[tuple[Rect, torch.Tensor]]) -> ObjectTiles:
        """Return a field of the object as it comes tile by tile."""
        return ObjectTiles(self.state.estimate.extent, ((rect.corner, self._to_host(tile)) for rect, tile in stream))

    def _result(self, fields: dict[str, np.ndarray], recipe: str) -> Result:
        stages, estimate, scan = self.stages, self.state.estimate, self.scan
        check = self.state.position_check
        try_part = self._judge_part if self._related else None
        judged = EstimateJudge(self.problem, self.state, scan, stages, self._held_out, try_part)
        residual, r, by_view = judged.final_residuals()
        fitted = 0 if self.noise is None else self._count_fitted()
        verdict = judged.verdict(residual, by_view, self.noise, fitted, self._history(), self.trial)
        positions = estimate.positions.cpu().numpy()
        in_scan, pixel = scan.scan_coordinates(positions), scan.geometry.object_pixel_m
        history = self._history()
        unknowns = {name: values.cpu().numpy() for name, values in estimate.others.items()}
        return Result(
            **{name: field for name, field in fields.items() if not name.startswith(OTHERS)},
            probe=self._to_host(estimate.probes[0]),
            positions_px=positions,
            positions_m=None if pixel is None else (in_scan - np.asarray(estimate.origin)) * np.asarray(pixel),
            pixel_size_m=pixel,
            slice_spacing_m=estimate.slice_spacing_m,
            tilt_rad=estimate.tilt_rad,
            residuals=by_view[:, 0] / np.maximum(by_view[:, 1], 1.0),
            parameters=estimate.parameters,
            unknowns=unknowns | {name.removeprefix(OTHERS): x for name, x in fields.items() if name.startswith(OTHERS)},
            history=history,
            recipe=recipe,
            attrs={
                "final_residual": residual,
                "final_r": r,
                "residual_views": judged.name_residual_views(),
                "position_check": None if check is None else check.sentence(),
                "term_checks": [one.sentence() for one in self.state.term_checks] or None,
                "held_out_fitted": sorted(judged.fitted_of_held_out) or None,
                "noise_floor": verdict.noise_floor,
                "noise_level": self.noise_level,
                "times_noise": verdict.times,
                "verdict": verdict.state,
                "verdict_sentence": verdict.sentence,
                "verdict_causes": list(verdict.signs) or None,
                "unexplained_views": list(verdict.views[:MOST_NAMED]) or None,
                "convergence": str(judge_convergence(history, self.noise_level)) if len(history["epoch"]) else None,
                "subpixel": self.subpixel,
                "propagation": scan.geometry.propagation,
                "radiation": scan.geometry.radiation,
                "energy_eV": scan.geometry.energy_eV,
                "distance_m": scan.geometry.distance_m,
                "fidelity": stages[-1].fidelity if stages else self.problem.model.fidelity,
                "engine": "+".join(stage.name for stage in stages),
                "ranks": self.world.size,
                "layout": self.problem.layout.name,
                **self._traffic(),
                "left_out": list(scan.left_out) or None,
                "findings": self.findings or None,
                "patterns": self.problem.loader.patterns.kind,
                "device": str(self.world.device.type),
                "precision": self.precision,
                "seed": self.seed,
                "started": self.started.isoformat(timespec="seconds"),
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "data_path": scan.path,
                "data_fingerprint": scan.fingerprint,
                "scan_names": list(scan.scan_names) or None,
                **describe_object(self.state.estimate, self.scan.geometry),
            },
            nominal_px=estimate.nominal.cpu().numpy() if any(stage.positions for stage in stages) else None,
            background=estimate.background.cpu().numpy() if bool((estimate.background != 0).any()) else None,
            weights=estimate.weights.cpu().numpy() if bool((estimate.weights != 1).any()) else None,
            opr=estimate.opr.cpu().numpy() if len(estimate.opr) else None,
            scan_index=scan.scan_index,
            held_out_views=self._held_out if len(self._held_out) else None,
            scan_probes=self._own_probes(),
        )

    def _own_probes(self) -> np.ndarray | None:
        """Return the probe of each scan, (S, M, h, w) complex; None where all share one."""
        estimate = self.state.estimate
        return None if estimate.probe_count == 1 else np.stack([self._to_host(one) for one in estimate.probes])

    def _history(self) -> dict[str, np.ndarray]:
        """Return the history without changes of what was never moved, and without rates where no scheduler acted."""
        columns = {name: np.asarray(column) for name, column in self.state.history.items()}
        may_lack = {name for name in columns if name == "rate" or name.startswith(CHANGE)}
        return {name: column for name, column in columns.items() if name not in may_lack or column.any()}

    def _traffic(self) -> dict[str, float]:
        """Return bytes and messages per batch of the busiest rank, where there are several. Collective."""
        if self.world.size == 1:
            return {}
        t = self.traffic
        mine = torch.tensor([t.bytes_sent + t.bytes_reduced, t.messages + t.reductions], dtype=torch.float64)
        sent, messages = (self.world.max(mine.to(self.world.device))[0] / max(1, t.batches)).tolist()
        return {"bytes_per_batch": sent, "messages_per_batch": messages}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Return a figure of the object as it is now; also written to `path` if one is given.

        On several ranks, all have the figure, but only the first one's `savefig` writes. Raises BadInput
        where `path` cannot be written, such as in a folder that is not there.
        """
        from ptymesh.plot import object_figure, save_figure

        with self.world.heartbeat.doing("report"):
            figure = object_figure(self.object, pixel_size_m=self.scan.geometry.object_pixel_m)
            if path is not None:
                on_first_rank(lambda: save_figure(figure, path), str(path))
        if world().rank:
            figure.savefig = lambda *_, **__: None  # type: ignore[method-assign]
        return figure


def _positions_of_result(path: str, estimate: Estimate, scan: Measurement) -> str:
    """Return a sentence that says whose positions a run starts from, and how far they lie from the scan's own."""
    apart = estimate.positions.cpu().numpy() - scan.positions
    far = float(np.abs(apart - np.median(apart, axis=0)).max())
    return (
        f"Positions start where {path} ended, up to {far:.3g} px from this scan's; positions.affine, rotation_deg, "
        "flips and lag are not applied to them again."
    )
