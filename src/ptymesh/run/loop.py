"""The only loop: stages, epochs, batches. Engines step, constraints and gauges follow, callbacks are told.

Between batches the loop looks whether it was asked to stop: on a GPU one batch later, as it does not wait for the work
queued last. Between epochs it merges what ranks have moved, applies constraints and gauges, lets the object grow, and
may write a checkpoint. Every rank takes every decision alike, from global values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ptymesh import stopping
from ptymesh.distributed.devices import Later
from ptymesh.distributed.layouts.handover import follow_draw
from ptymesh.distributed.world import World
from ptymesh.engines import Engine, object_values, parametrised, positions, sweeping, variable
from ptymesh.engines.base import PositionRefinement
from ptymesh.engines.remarks import naming_stage
from ptymesh.errors import BadInput, Diverged, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.measurement import evenly_spread
from ptymesh.models import Parametrisation
from ptymesh.physics.operators import Piece, Placed
from ptymesh.planning import batches
from ptymesh.problem import Batch, Problem
from ptymesh.run import memory, resolution
from ptymesh.run.position_check import PositionCheck, judge_positions, needs_position_check, reset_positions
from ptymesh.run.state import RunState
from ptymesh.run.unknown_changes import UnknownSamples, measure_changes, sample_unknowns
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport, Traffic
from ptymesh.unknowns import LARGEST, Unknown
from ptymesh.verdict.held_out import judge_held_out, own_unknowns
from ptymesh.verdict.term_trial import JudgeTerms, TermCheck, needs_term_check, put_back

#: A residual above 1 is worse than that of an empty model; so many rising epochs above it in a row are a divergence.
RISING_EPOCHS = 3
#: Held-out views that are judged in each epoch, at most, where they are fitted before; all of them are at the end.
MOST_FITTED = 64


class Loop:
    """Runs stages on a problem, from wherever the state stands.

    Args:
        problem, state: what is solved, and how far it is; in a coarse stage, `self.problem` is the coarse one.
        stages: engines, one per stage; their memory is taken from and left in the state.
        seed: of the batches, and of the views held out.
        hold_out: fraction of the views that no update sees; their residual is in the history. What each view has for
            itself is fitted on half of its pixels before (verdict/held_out.py).
        callbacks: watchers (rank 0's).
        stop: asked before each batch whether to stop; any rank's yes stops all.
        save: writes a checkpoint of the state and `self.problem` (collective), or None.
        due: asked on rank 0 after each epoch with the number of epochs done, whether to save now.
        noise_floor, noise_level: least residual that counting explains of a fit, and of the true intensities; for
            the watchers.
        judge_terms: judges terms of geometry and lens on this rank alone; None where neighbouring views are of no
            neighbouring places.
    """

    def __init__(
        self,
        problem: Problem,
        state: RunState,
        stages: Sequence[Engine],
        *,
        seed: int = 0,
        hold_out: float = 0.0,
        callbacks: Sequence[Callback] = (),
        stop: Callable[[], bool] = lambda: False,
        save: Callable[[], None] | None = None,
        due: Callable[[int], bool] = lambda done: False,
        noise_floor: float | None = None,
        noise_level: float | None = None,
        judge_terms: JudgeTerms | None = None,
    ) -> None:
        self.problem, self.state, self.stages, self.seed = problem, state, list(stages), seed
        self.callbacks, self.stop, self.save, self.due = callbacks, stop, save, due
        self.held_out = batches.hold_out(problem.unturned, hold_out, seed)
        problem.training = self.training = np.setdiff1d(np.arange(problem.views), self.held_out)
        if not len(self.training):
            raise BadInput(f"hold_out leaves none of the {problem.views} views to reconstruct from; leave it out.")
        self.total_epochs = sum(engine.epochs for engine in self.stages)
        self.traffic, self.noise_floor, self.noise_level = Traffic(), noise_floor, noise_level
        self._fine_problem, self.judge_terms = problem, judge_terms
        self._compiled_for: Engine | None = None
        self._epoch_end: UnknownSamples | None = None
        self._curve_of: tuple[Problem, np.ndarray] | None = None
        for index, engine in enumerate(self.stages):
            with naming_stage(f"stages.{index}"):
                engine.check(problem)
                object_values.check(engine, problem, state.estimate)
                resolution.check_coarsening(engine, problem)
        refuse_resting_unknowns(self.stages, problem.model.pieces, state.estimate, problem.world)

    def epochs(self) -> Iterator[EpochReport]:
        """Run what is left, an epoch at a time. Raises Interrupted (after a checkpoint) and Diverged."""
        while self.state.stage < len(self.stages):
            engine, state = self.stages[self.state.stage], self.state
            engine.state.update(state.engines.get(state.stage, {}))
            state.engines[state.stage] = engine.state
            self._recall_views(engine)
            self._share_views(engine)
            if engine.moves_background and self.problem.give_own_backgrounds(state.estimate):
                self._epoch_end = None  # it was of one background
            self._choose_resolution(engine)
            self.problem.model = replace(self.problem.model, fidelity=engine.fidelity)
            self.problem.backend.clear_caches()
            while state.epoch < engine.epochs:
                report = self._epoch(engine)
                yield report
            if engine.coarsen > 1:
                state.estimate = resolution.refine_estimate(state.estimate, engine, self.problem, self._fine_problem)
                self.problem = self._fine_problem
            self._check_estimate(engine)
            state.stage, state.epoch = state.stage + 1, 0

    def _choose_resolution(self, engine: Engine) -> None:
        """Set the problem of this stage; a stage that starts (rather than goes on) takes the estimate to its pixels."""
        state, c = self.state, engine.coarsen
        if c == 1:
            return
        coarse = resolution.coarse_problem(self._fine_problem, c, state.estimate)
        change = (
            resolution.coarsen_estimate if state.epoch == 0 and state.batch == 0 else resolution.restore_coarse_estimate
        )
        state.estimate = change(state.estimate, engine, self._fine_problem, coarse)
        self.problem = coarse

    def _recall_views(self, engine: Engine) -> None:
        """Give the engine what it remembers of views, and clear what other stages remember of an older estimate."""
        mine = dict(self.state.per_view.get(self.state.stage, {}))
        for stage in self.stages:
            stage.per_view.clear()
        engine.per_view.update(mine)
        self.state.per_view = {self.state.stage: engine.per_view}

    def _share_views(self, engine: Engine) -> None:
        """Give ranks equal shares of this stage's batches, and move what is kept of views with them. Collective."""
        problem = self.problem
        move = follow_draw(problem.layout, problem.scan, self.training, engine.order == "compact")
        if move is None:
            return
        with problem.world.heartbeat.doing("read"):
            problem.hand_over(move)
            for name, rows in engine.per_view.items():
                engine.per_view[name] = move.carry_rows(rows)

    def run(self) -> None:
        """Run what is left to the end."""
        for _ in self.epochs():
            pass

    @property
    def coarsened(self) -> int:
        """Pixels of the scan's object along a side of one of the running problem's."""
        return 1 if self.problem is self._fine_problem else self.stages[self.state.stage].coarsen

    def _epoch(self, engine: Engine) -> EpochReport:
        with self.problem.world.heartbeat.doing("batch"):
            return self._within_epoch(engine)

    def _within_epoch(self, engine: Engine) -> EpochReport:
        problem, state = self.problem, self.state
        heartbeat = problem.world.heartbeat
        heartbeat.where = f"stage {state.stage + 1}, epoch {state.epoch + 1}"
        began = time.perf_counter() - state.epoch_seconds
        problem.begin_epoch(state.estimate)
        if state.batch == 0:
            state.start = state.estimate.positions.clone()
            self._sample_epoch_start()
            memory.before_epoch(engine, problem, state.estimate)
        self._batches(engine, began)
        moved = self._constrain(engine)
        state.estimate.moving = False
        problem.layout.fill_halo(state.estimate.object)  # by whoever looks at it between epochs
        loss, residual, _ = problem.evaluator.running()
        state.epoch, state.batch, state.epoch_seconds = state.epoch + 1, 0, 0.0
        seconds = time.perf_counter() - began
        held_out = self._held_out_residual()
        rate = engine.rate(state.epoch)
        checks: list[PositionCheck | TermCheck] = [*state.term_checks]
        checks += [] if state.position_check is None else [state.position_check]
        self._append_history(loss, residual, seconds, held_out, rate, moved)
        report = EpochReport(
            state.stage,
            engine.name,
            state.epoch,
            engine.epochs,
            loss,
            residual,
            seconds,
            problem.views / seconds,
            state.done_epochs,
            self.total_epochs,
            held_out,
            moved,
            self.noise_floor,
            rate,
            self.noise_level,
            "; ".join(check.sentence() for check in checks if check.epochs == state.done_epochs),
        )
        with heartbeat.doing("report"):
            for callback in self.callbacks:
                callback.epoch(report)
        self._check(engine)
        last = state.done_epochs == self.total_epochs  # so that a run that is done can go on for longer
        if self.save and problem.world.agree(problem.world.rank == 0 and (self.due(state.done_epochs) or last)):
            self._save()
        return report

    def _held_out_residual(self) -> float | None:
        """Return the residual of the held-out views, None without any. Collective.

        What the stages so far move of each view alone is fitted on half of its pixels, and judged on the others. That
        takes as long as an epoch of some ten times as many views, so that not all views of a large scan are judged.
        """
        if not len(self.held_out):
            return None
        problem, estimate = self.problem, self.state.estimate
        unknowns = self._own_unknowns()
        if not unknowns:
            return problem.residual(estimate, self.held_out)[0]
        views = self.held_out[evenly_spread(len(self.held_out), MOST_FITTED)]
        return judge_held_out(problem, estimate, views, unknowns).residual

    def _own_unknowns(self) -> frozenset[str]:
        """Return what the stages so far move of each view alone."""
        state = self.state
        stages, optics = self.stages[: state.stage + 1], self.problem.model.unknowns
        names = own_unknowns(stages, optics, len(state.estimate.opr))
        return names - {"positions"} if state.refused_positions else names

    def _refined(self, engine: Engine, epoch: int) -> PositionRefinement | None:
        """Return the options of position refinement in this epoch, None where positions are not refined."""
        options = engine.positions
        return options if options and options.active(epoch) and not self.state.refused_positions else None

    def _batches(self, engine: Engine, began: float) -> None:
        problem, state = self.problem, self.state
        epoch = state.epoch + 1
        refine = self._refined(engine, epoch)
        vary = variable.due(engine.probe, state.estimate, epoch)
        frozen = problem.model.replaced | ({"probe", "opr"} if epoch <= engine.probe.frozen else set())
        models, gains = self._due_models(engine, epoch), engine.due_unknowns(epoch)
        stepping = refine is not None and refine.method == "gradient"
        moving = stepping or any(model.of == "positions" and not model.moves_between_epochs for model in models)
        state.estimate.moving = moving or refine is not None or any(model.moves_between_epochs for model in models)
        curve = positions.drop_astray(engine, self._curve()) if refine else self._curve()
        epoch_batches = batches.deal_batches(curve, engine.batch, self.seed, state.done_epochs, engine.order)
        views = sum(len(batch) for batch in epoch_batches[: state.batch])
        heartbeat, stops = problem.world.heartbeat, Later(problem.device)
        problem.loader.local_views.announce_batches(() if moving or vary else epoch_batches[state.batch :])
        for batch, coming in pairwise((*epoch_batches[state.batch :], epoch_batches[0][:0])):
            heartbeat.where = f"stage {state.stage + 1}, epoch {epoch}, batch {state.batch + 1}"
            problem.loader.next_views, before = coming, _count_traffic(problem.world)
            # a stage's first batch may compile what it needs
            first, self._compiled_for = engine is not self._compiled_for, engine
            one = Batch(batch, moving, epoch, vary, frozen, self.stop(), pieces=frozenset(gains))
            probe = state.estimate.probe.clone() if models else state.estimate.probe
            with heartbeat.doing("compile" if first else "batch"):
                memory.step(engine, problem, state.estimate, one, first=first)
            self._add_traffic(before, 1 / len(epoch_batches))
            object_values.after_batch(engine, problem, state.estimate, one)
            parametrised.after_batch(engine, problem, state.estimate, one, models, probe, state.start)
            if stepping:
                positions.after_batch(engine, one, state.estimate, state.start)
            if vary:
                variable.after_batch(engine.probe, problem, one, state.estimate)
            if gains:
                sweeping.after_batch(problem, state.estimate, one, gains)
            state.batch += 1
            stopping.held()  # before a process's first batch it has nothing to lose
            views += len(batch)
            state.epoch_seconds = time.perf_counter() - began
            if self.callbacks:
                report = BatchReport(state.stage, epoch, state.batch, len(epoch_batches), views, state.epoch_seconds)
                with heartbeat.doing("report"):
                    for callback in self.callbacks:
                        callback.batch(report)
            if self._asked_to_stop(one, stops):
                self._interrupt()
        if stops.last() > 0:
            self._interrupt()

    def _asked_to_stop(self, batch: Batch, stops: Later) -> bool:
        """Return True if any rank was asked to stop; on a device that queues its work, as of the batch before."""
        problem = self.problem
        if problem.world.size == 1 and problem.device.type == "cpu":
            return batch.stop  # nobody else to ask, and no sum to read
        return batch.view_updates.stop is not None and stops.read(batch.view_updates.stop) > 0

    def _curve(self) -> np.ndarray:
        """Return the training views in the order from which batches are dealt.

        It is of the running problem, which a coarse stage changes.
        """
        if self._curve_of is None or self._curve_of[0] is not self.problem:
            self._curve_of = self.problem, batches.order_along_curve(self.problem.scan, self.training)
        return self._curve_of[1]

    def _add_traffic(self, before: tuple[int, int, int, int, int], epochs: float) -> None:
        """Add what a batch, that share of an epoch, has exchanged since the counts `before` it."""
        traffic, now = self.traffic, _count_traffic(self.problem.world)
        traffic.batches += 1
        traffic.epochs += epochs
        traffic.reductions += now[0] - before[0]
        traffic.bytes_reduced += now[1] - before[1]
        traffic.messages += now[2] - before[2]
        traffic.bytes_sent += now[3] - before[3]
        traffic.bytes_received += now[4] - before[4]

    def _constrain(self, engine: Engine) -> dict[str, float]:
        """Do what follows the batches of an epoch, and return how far each unknown has moved in it."""
        problem, state = self.problem, self.state
        epoch = state.epoch + 1
        engine.after_epoch(problem, state.estimate)
        object_values.after_epoch(engine, state.estimate)
        refine = self._refined(engine, epoch)
        if refine:
            draw = self.seed, state.done_epochs, epoch
            taking_part = positions.drop_astray(engine, self.training)
            positions.search(engine, problem, state.estimate, taking_part, state.start, draw)
            positions.after_epoch(engine, problem, state.estimate, state.start)
            if refine.relocate:
                positions.relocate(engine, problem, state.estimate, self.training, epoch)
        if variable.due(engine.probe, state.estimate, epoch):
            variable.after_epoch(problem, state.estimate, engine.probe)
        engine.apply_constraints(problem, state.estimate, epoch)
        models = self._due_models(engine, epoch)
        parametrised.after_epoch(engine, problem, state.estimate, models, self.training, epoch)
        self._check_positions(engine)
        self._check_terms(engine)
        self._epoch_end = sample_unknowns(problem, state.estimate)
        moved = measure_changes(state.before, self._epoch_end)
        extent = state.estimate.extent
        stages_with_memory = [
            (self.stages[stage], memory) for stage, memory in state.engines.items() if stage < len(self.stages)
        ]
        positions.reanchor(engine, problem, state.estimate, stages_with_memory)
        if extent != state.estimate.extent or epoch == engine.epochs:
            self._epoch_end = None  # other pixels are looked at from here on, by all ranks
        return moved

    def _check_positions(self, engine: Engine) -> None:
        """Judge refined positions, once in a run, and go back to recorded ones where they do not help. Collective."""
        problem, state = self.problem, self.state
        stages = self.stages[: state.stage + 1]
        if state.position_check is not None or not needs_position_check(engine, state.epoch + 1, self.held_out, stages):
            return
        problem.layout.fill_halo(state.estimate.object)
        unknowns, epochs = self._own_unknowns(), state.done_epochs + 1
        state.position_check = judge_positions(problem, state.estimate, self.held_out, unknowns, epochs)
        if state.refused_positions:
            reset_positions(state.estimate)

    def _due_models(self, engine: Engine, epoch: int) -> list[Parametrisation]:
        """Return the parametrisations that move in this epoch, without terms that were put back."""
        refused = {(check.model, check.term) for check in self.state.term_checks if check.is_refused}
        epochs_left = (
            one.without([term for model, term in refused if model == one.name])
            for one in parametrised.due(engine, epoch)
        )
        return [one for one in epochs_left if one is not None]

    def _check_terms(self, engine: Engine) -> None:
        """Judge terms of geometry and lens, once in a run, and put those back that do not help. Collective."""
        problem, state, judge = self.problem, self.state, self.judge_terms
        judged = {check.model for check in state.term_checks}
        for model in engine.models.values():
            if judge is None or model.name in judged or not needs_term_check(model, engine, state.epoch + 1):
                continue
            find = partial(judge, state.estimate, model, engine, state.done_epochs + 1)
            # the first rank may take minutes, with no batch of this problem
            with problem.world.heartbeat.doing("read"):
                term_checks = problem.world.decide_on_first_rank(find, "judging terms")
            checks = [TermCheck(**one) for one in term_checks]
            state.term_checks += checks
            if refused := [check.term for check in checks if check.is_refused]:
                changed = put_back(problem.geometry, state.estimate, model, refused)
                for name in (model.of, "nominal"):
                    getattr(state.estimate, name).copy_(getattr(changed, name))
                state.estimate.parameters.update(changed.parameters)

    def _sample_epoch_start(self) -> None:
        """Keep the unknowns as they are when an epoch begins, which is how the one before has left them."""
        self.state.before = self._epoch_end or sample_unknowns(self.problem, self.state.estimate)

    def _append_history(
        self,
        loss: float,
        residual: float,
        seconds: float,
        held_out: float | None,
        rate: float,
        moved: dict[str, float],
    ) -> None:
        row = {"epoch": self.state.epoch, "stage": self.state.stage, "loss": loss, "residual": residual}
        row |= {"seconds": seconds, "held_out": math.nan if held_out is None else held_out, "rate": rate, **moved}
        for name, column in self.state.history.items():
            column.append(row[name])

    def _check(self, engine: Engine) -> None:
        """Raise Diverged where the loss is no number any more, or the residual rises above that of an empty model."""
        recent = self.state.history["residual"][-RISING_EPOCHS - 1 :]
        finite = math.isfinite(self.state.history["loss"][-1]) and math.isfinite(recent[-1])
        rising = len(recent) > RISING_EPOCHS and min(recent[1:]) > 1 and recent == sorted(recent)
        if finite and not rising:
            return
        symptom = f"the residual rose to {recent[-1]:.3g}" if finite else "the loss is no longer a finite number"
        raise Diverged(
            f"Stage {self.state.stage + 1} ({engine.name}) diverged: {symptom} in epoch {self.state.epoch}; "
            "try smaller steps (gamma_object, gamma_probe, a larger alpha), a smaller batch, or a better initial probe."
        )

    def _check_estimate(self, engine: Engine) -> None:
        """Raise Diverged where object or probe hold values that a result may not hold, if only where no view looks.

        Collective.
        """
        estimate, world = self.state.estimate, self.problem.world
        odd = torch.stack([(~(array.abs() <= LARGEST)).any() for array in (estimate.object, estimate.probe)])
        if bool(world.max(odd.to(torch.int64))[0].any()):
            raise Diverged(
                f"Stage {self.state.stage + 1} ({engine.name}) diverged: object or probe hold values that are not "
                f"finite, or beyond {LARGEST:g}; try smaller steps, a better start, or data in smaller units."
            )

    def _save(self) -> None:
        assert self.save is not None
        with self.problem.world.heartbeat.doing("save"):
            self.save()

    def _interrupt(self) -> None:
        if self.save:
            self._save()
            raise Interrupted("Stopped after a checkpoint; `ptymesh resume` continues from here.")
        raise Interrupted("Stopped between two batches.")


def refuse_resting_unknowns(
    stages: Sequence[Engine], operators: Sequence[Placed[Any]], estimate: Estimate, world: World
) -> None:
    """Refuse engines that cannot move an unknown of the model's operators, where nothing has moved it or will.

    Collective: each rank knows the rows of its own views alone, which may be none.

    Args:
        stages: of the run.
        operators: pieces of the model.
        estimate: the unknowns; values other than the declared start have been given, or moved before.
        world: the ranks.

    Raises:
        BadInput: an unknown would stay where it starts, though no stage was asked to leave it there.
    """
    fixed = next((engine for engine in stages if not engine.moves_optics), None)
    if fixed is None:
        return
    for operator in (placed.operator for placed in operators):
        for one in operator.unknowns:
            moves = any(one.name in stage.moved_optics(operator.unknowns) for stage in stages)
            may_stay = one.may_rest or one.name in operator.start
            if not moves and not may_stay and not world.agree(_has_left_start(estimate, operator, one)):
                raise BadInput(_describe_resting_unknown(fixed, operator, one))


def _has_left_start(estimate: Estimate, operator: Piece, one: Unknown) -> bool:
    """Return True if an unknown of an operator is not where the operator starts it by itself."""
    array = estimate.others[one.name]
    return bool((array != operator.starts(estimate.sizes(), array.device, array.real.dtype)[one.name]).any())


def _describe_resting_unknown(engine: Engine, piece: Piece, one: Unknown) -> str:
    """Return the sentence about an unknown of a piece that no stage moves, and that has no value in the recipe."""
    remedy, how = f"unknowns: {{{one.name}: true}}", "add a stage of rpie, lsqml or adam with"
    how = f"add {remedy} to the stage" if engine.moves_named_unknowns else f"{how} {remedy}"
    return (
        f"{one.name} of optics.{piece.name} would stay as it starts; {how}, or say what it is: "
        f"optics: {{{piece.name}: {{start: {{{one.name}: {one.start:g}}}}}}}."
    )


def _count_traffic(world: World) -> tuple[int, int, int, int, int]:
    return world.collectives, world.bytes_reduced, world.messages, world.bytes_sent, world.bytes_received
