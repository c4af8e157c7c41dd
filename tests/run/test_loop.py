"""The loop: stages, reports, interruption and resumption at any batch, divergence."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, MPIE, RPIE, Engine
from ptymesh.errors import BadInput, Diverged, Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport
from toy import Toy, make, relative

STAGES = [
    dict(engine="mpie", epochs=3, batch=7, momentum_every=4, positions={"start": 2}),
    dict(engine="rpie", epochs=2, batch=11, positions=True, probe={"power": True, "centre": True}),
]


def stages() -> list[Engine]:
    return [ENGINES[s["engine"]](**{k: v for k, v in s.items() if k != "engine"}) for s in STAGES]


class Stop:
    """Says stop when asked for the n-th time."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


def fresh(toy: Toy) -> RunState:
    return RunState(toy.start(position_error=0.5))


def undisturbed(world: World) -> dict:
    toy = make(views=40, modes=2)
    state = fresh(toy)
    Loop(toy.problem(world), state, stages(), seed=3).run()
    return bits(state)


def broken_and_resumed(world: World, folder: str, batch: int) -> dict:
    """Stops in batch `batch`, writes a checkpoint, and goes on from it as a new process would."""
    toy = make(views=40, modes=2)
    problem, state = toy.problem(world), fresh(toy)
    loop = Loop(
        problem,
        state,
        stages(),
        seed=3,
        stop=Stop(batch) if world.rank == world.size - 1 else lambda: False,
        save=lambda: state.save(Path(folder), problem, {}),
    )
    with pytest.raises(Interrupted):
        loop.run()
    return resumed(world, folder)


def resumed(world: World, folder: str) -> dict:
    toy = make(views=40, modes=2)
    problem = toy.problem(world)
    state = RunState.load(checkpoint.load(Path(folder)), problem)
    Loop(problem, state, stages(), seed=3).run()
    return bits(state)


def bits(state: RunState) -> dict:
    e = state.estimate
    values = {name: getattr(e, name).numpy() for name in ("object", "probe", "positions", "anchors")}
    return {**values, "loss": np.array(state.history["loss"]), "epochs": np.array(state.history["epoch"])}


@functools.cache
def alone() -> dict:
    """Return what runs that were stopped must end with, on one rank."""
    return undisturbed(Solo())


@pytest.mark.sample(5)
@pytest.mark.parametrize("batch", [1, 4, 6, 11, 18, 19, 24, 26])
def test_resumed_runs_end_with_the_same_bits(tmp_path: Path, batch: int) -> None:
    """First batch, middle, last of an epoch, first and last of a stage, momentum under way."""
    expected, got = alone(), broken_and_resumed(Solo(), str(tmp_path), batch)
    for name, value in expected.items():
        assert np.array_equal(got[name], value), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [4, 20])
def test_resumed_runs_end_with_the_same_bits_on_ranks(ranks, tmp_path: Path, batch: int) -> None:  # type: ignore[no-untyped-def]
    expected = ranks(3, undisturbed)
    got = ranks(3, broken_and_resumed, str(tmp_path), batch)
    for rank in range(3):
        for name, value in expected[rank].items():
            assert np.array_equal(got[rank][name], value), name


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_another_number_of_ranks_goes_on_with_the_same_answer(ranks, tmp_path: Path, size: int) -> None:  # type: ignore[no-untyped-def]
    ranks(3, broken_and_resumed, str(tmp_path), 20)
    expected = alone()
    for got in ranks(size, resumed, str(tmp_path)):
        for name in ("object", "probe", "positions"):
            assert relative(got[name], expected[name]) < 1e-12
        assert np.allclose(got["loss"], expected["loss"], rtol=1e-11)


def test_a_checkpoint_of_another_scan_is_refused(tmp_path: Path) -> None:
    toy = make(views=40)
    problem = toy.problem()
    fresh(toy).save(tmp_path, problem, {})
    with pytest.raises(BadInput, match="40 views, this data set has 30"):
        RunState.load(checkpoint.load(tmp_path), make(views=30).problem())


class Watch(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.batches: list[BatchReport] = []
        self.epochs: list[EpochReport] = []

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)

    def epoch(self, report: EpochReport) -> None:
        self.epochs.append(report)


def test_reports() -> None:
    toy, watch = make(views=40), Watch()
    Loop(toy.problem(), fresh(toy), stages(), callbacks=[watch]).run()
    assert [(r.stage, r.epoch, r.engine) for r in watch.epochs] == [
        (0, 1, "mpie"),
        (0, 2, "mpie"),
        (0, 3, "mpie"),
        (1, 1, "rpie"),
        (1, 2, "rpie"),
    ]
    assert [r.done_epochs for r in watch.epochs] == [1, 2, 3, 4, 5] and watch.epochs[0].total_epochs == 5
    first = watch.batches[:6]
    assert [r.batch for r in first] == [1, 2, 3, 4, 5, 6] and first[-1].views == 40 and first[-1].batches == 6
    assert watch.epochs[-1].residual < watch.epochs[0].residual


def test_running_values_are_those_of_each_view_in_its_batch() -> None:
    """With steps of (almost) nothing, running and frozen residual are the same."""
    toy, watch = make(views=40, noise=True), Watch()
    state = fresh(toy)
    problem = toy.problem()
    Loop(problem, state, [RPIE(epochs=1, batch=8, gamma_object=1e-12, gamma_probe=1e-12)], callbacks=[watch]).run()
    frozen, _ = problem.residual(state.estimate)
    assert watch.epochs[0].residual == pytest.approx(frozen, rel=1e-9)
    counts = float(toy.measurement.patterns.read(np.arange(40)).sum())
    assert watch.epochs[0].loss == pytest.approx(frozen * counts, rel=1e-9)


def test_not_a_number_is_a_divergence() -> None:
    toy = make(views=40)
    state = fresh(toy)
    state.estimate.object[0, 40, 40] = float("nan")
    with pytest.raises(Diverged, match=r"epoch 1.*smaller steps"):
        Loop(toy.problem(), state, [RPIE(epochs=3, batch=10)]).run()


class Growing(RPIE):
    """An engine that makes things worse."""

    def step(self, problem, estimate, batch) -> None:  # type: ignore[no-untyped-def]
        problem.gradients(estimate, batch)
        estimate.probe *= 1.5


def test_a_rising_loss_is_a_divergence_and_keeps_the_last_checkpoint() -> None:
    toy, saved = make(views=40), []
    state = fresh(toy)
    with pytest.raises(Diverged, match="the residual rose to"):
        Loop(
            toy.problem(),
            state,
            [RPIE(epochs=2, batch=10), Growing(epochs=20, batch=10)],
            save=lambda: saved.append(state.done_epochs),
            due=lambda done: done == 2,
        ).run()
    assert saved == [2] and state.done_epochs < 12


def test_a_stage_goes_on_from_the_one_before() -> None:
    toy = make(views=40)
    whole, parts = fresh(toy), fresh(toy)
    Loop(toy.problem(), whole, [RPIE(epochs=4, batch=10)]).run()
    Loop(toy.problem(), parts, [RPIE(epochs=2, batch=10), RPIE(epochs=2, batch=10)]).run()
    assert torch.equal(whole.estimate.object, parts.estimate.object)


def test_frozen_probe_stays_for_so_many_epochs() -> None:
    toy, probes = make(views=40), []
    state = fresh(toy)
    start = state.estimate.probe.clone()
    for _ in Loop(toy.problem(), state, [MPIE(epochs=3, batch=10, probe={"frozen": 2})]).epochs():
        probes.append(state.estimate.probe.clone())
    assert torch.equal(probes[0], start) and torch.equal(probes[1], start) and not torch.equal(probes[2], start)


def test_position_refinement_starts_when_told() -> None:
    toy = make(views=40)
    state, moved = fresh(toy), []
    stage = RPIE(epochs=5, batch=10, positions={"start": 2, "stop": 4, "every": 2})
    before = state.estimate.positions.clone()
    for _ in Loop(toy.problem(), state, [stage]).epochs():
        moved.append(not torch.equal(state.estimate.positions, before))
        before = state.estimate.positions.clone()
    assert moved == [False, True, False, True, False]


def test_held_out_views_are_watched_and_not_fitted() -> None:
    """With noise, the views that no update sees end with the larger residual; without any, nothing is noted."""
    toy, watch = make(views=60, noise=True, counts=2e3), Watch()
    problem, state = toy.problem(), fresh(toy)
    loop = Loop(problem, state, [RPIE(epochs=15, batch=10)], seed=3, hold_out=0.1, callbacks=[watch])
    loop.run()
    assert len(loop.held_out) == 6 and watch.batches[5].views == 54
    frozen = problem.residual(state.estimate, loop.held_out)[0]
    assert watch.epochs[-1].held_out == pytest.approx(frozen) == pytest.approx(state.history["held_out"][-1])
    assert frozen > problem.residual(state.estimate, loop.training)[0]
    Loop(toy.problem(), fresh(toy), [RPIE(epochs=1, batch=10)], callbacks=[watch]).run()
    assert watch.epochs[-1].held_out is None
