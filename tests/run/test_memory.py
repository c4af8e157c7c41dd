"""Memory runs out in the middle of a step on one rank: it goes on with smaller chunks, and the answer is the same."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import DM, ENGINES, LBFGS, LSQML, RPIE
from ptymesh.errors import BadInput, PtymeshError, ran_out_of_memory
from ptymesh.geometry import Geometry
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.problem import Batch
from ptymesh.run import machine, memory
from ptymesh.run import state as state_module
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from toy import make, relative, share

#: `sweep`: of a stage's first step, in which memory runs out. The later sweeps of L-BFGS and DM come after sums
#: over ranks, which must not be asked for again.
ENGINES_AND_SWEEPS = [("rpie", 0), ("lsqml", 0), ("adam", 0), ("lbfgs", 1), ("dm", 0), ("dm", 2)]
#: Those whose batch is the whole scan.
WHOLE = ("dm", "lbfgs")


class Scarce:
    """`chunks` that fail once, in the second chunk of a sweep; largest: the largest chunk after that."""

    def __init__(self, problem: Any, sweep: int, error: Exception) -> None:
        self.world, self.chunks, self.sweep, self.error, self.largest = (
            problem.world,
            problem.loader.chunks,
            sweep,
            error,
            0,
        )
        self.swept: set[int] = set()

    def __call__(self, estimate: Any, views: Any, **options: Any) -> Any:
        for chunk in self.chunks(estimate, views, **options):
            if self.world.record:  # within a step
                self._look(set(chunk.views.tolist()))
            yield chunk

    def _look(self, views: set[int]) -> None:
        if views <= self.swept:
            self.sweep, self.swept = self.sweep - 1, set()
        self.swept |= views
        if self.sweep == 0 and len(self.swept) > len(views):
            self.sweep = -1
            raise self.error
        if self.sweep < 0:
            self.largest = max(self.largest, len(views))


def reconstruct(
    world: World, name: str, sweep: int | None, rank: int = 0, layout: str = "replicated"
) -> dict[str, Any]:
    """Two epochs; chunks of 2 views, and out of memory in that sweep on that rank."""
    toy = make(views=30, modes=2)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(position_error=0.3), problem))
    problem.loader.chunk_sizes.limit = 2
    batch = {} if name in WHOLE else {"batch": 15}
    engine = ENGINES[name](epochs=2, positions={"start": 1}, **batch)
    scarce = Scarce(problem, 10**9 if sweep is None else sweep, MemoryError("all gone"))
    if world.rank == rank:
        problem.loader.chunks = scarce  # type: ignore[method-assign,assignment]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        Loop(problem, state, [engine], seed=1).run()
    return {
        "object": problem.layout.gather_whole(state.estimate.object, state.estimate).numpy(),
        "probe": state.estimate.probe.numpy(),
        "positions": state.estimate.positions.numpy(),
        "loss": np.array(state.history["loss"]),
        "collectives": world.collectives,
        "said": said.getvalue(),
        "largest": scarce.largest,
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "sweep"), ENGINES_AND_SWEEPS)
@pytest.mark.parametrize(("size", "layout"), [(1, "replicated"), (2, "panels"), (3, "replicated")])
def test_the_answer_is_the_same(ranks: Any, size: int, layout: str, name: str, sweep: int) -> None:
    expected = ranks(size, reconstruct, name, None, 0, layout)
    found = ranks(size, reconstruct, name, sweep, size - 1, layout)
    for one, other in zip(found, expected, strict=True):
        for what in ("object", "probe", "positions", "loss"):
            assert relative(one[what], other[what]) < 1e-10, what
    assert found[-1]["said"] == f"ptymesh: rank {size - 1} ran out of memory; it goes on with chunks of 1 view.\n"
    assert found[-1]["largest"] == 1 and all(not other["said"] for other in found[:-1]), "on that rank alone"
    began = [rank["collectives"] for rank in found]
    assert len(set(began)) == 1, "no rank asked for more than the others"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts(error: Exception, expected: bool) -> None:
    assert ran_out_of_memory(error) is expected


def test_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make(views=6)
    problem = toy.problem()

    def chunks(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")

    monkeypatch.setattr(problem.loader, "chunks", chunks)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 << 30)
    with pytest.raises(PtymeshError) as failed:
        Loop(problem, RunState(toy.start()), [RPIE(epochs=1, batch=6)], seed=1).run()
    said = str(failed.value)
    assert said.startswith("Rank 0 ran out of memory (DefaultCPUAllocator") and "has 3.22 GB free" in said
    assert "for the patterns of its 6 views" in said and "the object and its sums" in said and "one chunk" in said


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make(views=6)
    problem = toy.problem()
    monkeypatch.setattr(problem.loader, "chunks", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Loop(problem, RunState(toy.start()), [RPIE(epochs=1, batch=6)], seed=1).run()


@pytest.mark.parametrize(
    ("engine", "sweep", "possible"),
    [(LSQML(epochs=1, batch=12), 0, True), (LBFGS(epochs=1), 1, False), (DM(epochs=1), 0, False)],
)
def test_later_steps_can_be_taken_again_before_anything_was_received(
    engine: Any, sweep: int, possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make(views=12)
    problem, estimate = toy.problem(), toy.start()
    problem.loader.chunk_sizes.limit = 2
    problem.begin_epoch(estimate)
    batch = Batch(np.arange(12))
    engine.before_epoch(problem, estimate)
    memory.step(engine, problem, estimate, batch, first=True)
    monkeypatch.setattr(problem.loader, "chunks", Scarce(problem, sweep, MemoryError()))
    with nullcontext() if possible else pytest.raises(PtymeshError, match="ran out of memory"):
        memory.step(engine, problem, estimate, batch, first=False)
    assert (problem.loader.chunk_sizes.limit == 1) == possible


def scarce_waves(
    world: World, most: int | None, halves: bool = False, moving: bool = True, kind: Any = None
) -> dict[str, Any]:
    """LSQML, where the last rank has memory to keep waves of so many views, and fetches its patterns anew."""
    toy = make(views=30, modes=2, dtype=torch.complex64, **(kind or {}))
    problem, state = toy.problem(world, halves=halves), RunState(toy.start(position_error=0.3))
    problem.loader.chunk_sizes.limit, keep, held = 2, problem.evaluator._add_waves, [0]

    def scarce(chunk: Any, *given: Any) -> Any:
        if len(chunk.counts) == 0:  # of the first sweep
            held[0] = problem.evaluator.kept_views
            if most is not None and held[0] > most and world.rank == world.size - 1:
                raise MemoryError("no room for waves")
        return keep(chunk, *given)

    problem.evaluator._add_waves = scarce  # type: ignore[method-assign]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        Loop(problem, state, [LSQML(epochs=2, batch=30, positions={"start": 1} if moving else None)], seed=1).run()
    e = state.estimate
    arrays = {name: getattr(e, name).numpy() for name in ("object", "probe", "positions")}
    return {
        **arrays,
        "losses": np.array(state.history["loss"]),
        "said": said.getvalue(),
        "limit": problem.loader.chunk_sizes.limit,
    }


@pytest.mark.sample(5)
@pytest.mark.parametrize(("moving", "halves"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(
    "kind", [{"slices": 3}, {"propagation": "angular_spectrum"}, {"subpixel": "bilinear"}], ids=str
)
def test_waves_are_made_twice_by_all_ways_through_a_model(
    ranks: Any, kind: dict[str, Any], moving: bool, halves: bool
) -> None:
    """To the same bits."""
    (plain,), (scarce,) = (ranks(1, scarce_waves, most, halves, moving, kind) for most in (None, 11))
    assert "twice" in scarce["said"]
    for name in ("object", "probe", "positions", "losses"):
        assert np.array_equal(plain[name], scarce[name]), name


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_waves_of_a_batch_are_made_twice_where_they_cannot_be_kept(ranks: Any, size: int, halves: bool) -> None:
    """To the same bits, and chunks are not made smaller for it."""
    plain, scarce = ranks(size, scarce_waves, None, halves), ranks(size, scarce_waves, 11, halves)
    for one, other in zip(scarce, plain, strict=True):
        for name in ("object", "probe", "positions", "losses"):
            assert np.array_equal(one[name], other[name]), name
    twice = "it makes waves of a batch twice instead of keeping them"
    assert scarce[-1]["said"] == f"ptymesh: rank {size - 1} ran out of memory; {twice}.\n"
    assert scarce[-1]["limit"] == 2 and not any(rank["said"] for rank in plain)


def scarce_start(world: World, most: int) -> tuple[list[float], int]:
    """LSQML's losses, where what comes before an epoch has memory for so many views at a time on the last rank."""
    toy = make(views=30)
    problem, state = toy.problem(world), RunState(toy.start())
    illuminate = problem.backend.illuminate

    def scarce(model: Any, chunk: Any, *given: Any) -> None:
        if world.rank == world.size - 1 and len(chunk.views) > most:
            raise MemoryError("no room")
        illuminate(model, chunk, *given)

    problem.backend.illuminate = scarce  # type: ignore[method-assign]
    with contextlib.redirect_stderr(io.StringIO()):
        Loop(problem, state, [LSQML(epochs=1, batch=15)], seed=1).run()
    return state.history["loss"], problem.loader.chunk_sizes.limit


def test_memory_that_runs_out_before_an_epoch(ranks: Any) -> None:
    plain, small = ranks(2, scarce_start, 99), ranks(2, scarce_start, 3)
    assert [losses for losses, _ in small] == [losses for losses, _ in plain]
    assert plain[1][1] == 0 and 1 <= small[1][1] <= 3 and small[0][1] == 0


def test_memory_that_runs_out_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It is written once more, without what was held to be faster."""
    toy, given_back, failures = make(views=8), [0], iter([1, 0])
    problem, state, numpy = toy.problem(), RunState(toy.start()), state_module._to_numpy

    def scarce(tensor: torch.Tensor) -> Any:
        if tensor is state.estimate.probe and next(failures, 0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return numpy(tensor)

    monkeypatch.setattr(state_module, "_to_numpy", scarce)
    monkeypatch.setattr(problem.setup, "give_back", lambda: given_back.append(1))
    state.save(tmp_path, problem, {})
    assert given_back == [0, 1]
    assert relative(checkpoint.load(tmp_path).shared["probe"], state.estimate.probe) == 0


SHOWN: dict[str, Callable[[pm.Reconstruction, Path], np.ndarray]] = {
    "plot": lambda recon, folder: np.asarray(recon.plot().axes[0].images[0].get_array()),
    "plot to a file": lambda recon, folder: (recon.plot(folder / "object.png"), plt.imread(folder / "object.png"))[1],
    "notebook": lambda recon, folder: np.array(recon._repr_html_()),
    "result": lambda recon, folder: recon.result().object,
    "save": lambda recon, folder: recon.save(folder / "result.h5").object,
    "saved": lambda recon, folder: (recon.save(folder / "result.h5"), Result.load(folder / "result.h5").object)[1],
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SHOWN)
def test_memory_that_runs_out_while_something_is_shown(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An object goes through contiguous memory of the device on its way to the host."""
    recon = pm.Reconstruction(simulate(views=9, window=16, scan="raster").measurement)
    list(recon.run(RPIE(batch=3), epochs=1))
    wanted, cpu, given_back = SHOWN[name](recon, tmp_path), torch.Tensor.cpu, [0]

    def scarce(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == recon.state.estimate.object.shape and not sum(given_back):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return cpu(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", scarce)
    monkeypatch.setattr(recon.problem.setup, "give_back", lambda: given_back.append(1))
    assert np.array_equal(SHOWN[name](recon, tmp_path), wanted) and given_back == [0, 1]
    monkeypatch.setattr(recon.problem.setup, "give_back", lambda: None)
    given_back.clear()
    with pytest.raises(torch.OutOfMemoryError):
        SHOWN[name](recon, tmp_path)


def test_free_and_peak() -> None:
    assert 1 << 20 < machine.peak_bytes(torch.device("cpu")) < 1 << 45
    assert memory.free_bytes(torch.device("cpu")) > 0


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_of_any_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peak, and what torch holds for later, which is given back when memory runs out."""
    gpu, asked = torch.device(kind, 1), []
    module = SimpleNamespace(
        reset_peak_memory_stats=lambda device: asked.append(("reset", device)),
        max_memory_allocated=lambda device: 7,
        empty_cache=lambda: asked.append(("empty", gpu)),
    )
    problem = make(views=4, window=(8, 12)).problem()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module if device == gpu else None)
    monkeypatch.setattr(problem.setup, "device", gpu)
    machine.forget_peak(gpu)
    assert machine.peak_bytes(gpu) == 7
    problem.setup.give_back()
    assert asked == [("reset", gpu), ("empty", gpu)]


def test_a_probe_beyond_any_memory_is_refused_before_it_is_made() -> None:
    scan = simulate(views=4, window=16, scan="raster").measurement
    check = partial(memory.check_object, Solo(), layout="auto", margin_px=3, slices=1, dtype=torch.complex64)
    check(scan, modes=10_000)
    patterns = np.broadcast_to(np.uint8(1), (4, 4096, 4096))
    wide = replace(scan, patterns=patterns, geometry=Geometry((4096, 4096)), mask=patterns[0] > 0, probe=None)
    with pytest.raises(BadInput, match=r"10000 modes of 4096 x 4096 pixels need 2\.68 TB on each rank.* probe\.modes"):
        check(wide, modes=10_000)


def scarce_residual(world: World, most: int) -> tuple[float, float, int]:
    """The residual, where the last rank has memory for so many views at a time; and its chunks' limit."""
    toy = make(views=30, modes=2)
    problem = toy.problem(world, "panels")
    estimate = share(toy.start(), problem)
    detector = problem.backend.detector

    def scarce(model: Any, chunk: Any, *given: Any) -> Any:
        if world.rank == world.size - 1 and len(chunk.views) > most:
            raise MemoryError("no room")
        return detector(model, chunk, *given)

    problem.backend.detector = scarce  # type: ignore[method-assign]
    return *problem.residual(estimate), problem.loader.chunk_sizes.limit


def test_memory_that_runs_out_in_a_residual(ranks: Any) -> None:
    plain, small = ranks(2, scarce_residual, 99), ranks(2, scarce_residual, 3)
    assert [one[:2] for one in small] == [one[:2] for one in plain]
    assert plain[1][2] == 0 and 1 <= small[1][2] <= 3 and small[0][2] == 0
    with pytest.raises(PtymeshError, match="Rank 0 ran out of memory with a single view at a time"):
        scarce_residual(Solo(), 0)
