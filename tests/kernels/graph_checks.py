"""Sweeps that are launched as one give what kernels launched one by one do; test_triton.py runs this file.

The device is pretended (pretended.py): what is captured is noted, and happens when it is launched, with the numbers
that the host had then and in memory that holds nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from pretended import DEVICE, Pretended
from references import Case, nothing
from wait_checks import device, moved, problem_on, run, run_here, within_epochs

from ptymesh.engines.lsqml import LSQML
from ptymesh.engines.pie import RPIE
from ptymesh.kernels.gpu import graphs
from ptymesh.kernels.gpu.backend import GpuBackend
from ptymesh.physics.backend import Backend, BatchCache, reference_of
from ptymesh.problem import Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative

__all__ = ["device"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the graph of so many views was launched."""
    found: Counter[int] = Counter()
    replay = graphs._Graph.replay

    def counted(self: graphs._Graph, *given: Any) -> Any:
        found[len(self.chunk.views)] += 1
        return replay(self, *given)

    monkeypatch.setattr(graphs._Graph, "replay", counted)
    return found


def reconstructed(
    device: Pretended, toy: Toy, backend: GpuBackend, limit: int = 0, engine: str = "rpie", **options: Any
) -> Problem:
    """What comes out on the device is what kernels launched one by one give, and no batch waits."""
    problems, states = [], []
    for some in (GpuBackend(capture=False), backend):
        problem = problem_on(device, toy, some)
        problem.loader.chunk_sizes.limit = limit
        problems.append(problem)
        states.append(run(problem, moved(toy.start(), device), engine, **options))
    assert within_epochs(device) == []
    for name in ("object", "probe"):
        wanted, got = (getattr(state.estimate, name).here for state in states)
        assert relative(got, wanted) < 1e-12
    torch.testing.assert_close(*(p.evaluator.view_metrics.values.here for p in problems), rtol=1e-9, atol=1e-12)
    return problems[1]


def held(problem: Problem) -> graphs.Graphs:
    assert isinstance(problem.backend, GpuBackend) and problem.backend.graphs is not None
    return problem.backend.graphs


#: Of checks that take long in the interpreter, those that `make stand-in` has beside the sample of `make test`.
more = pytest.mark.stand_in


@more
@pytest.mark.parametrize(
    ("subpixel", "fidelity"),
    [
        ("fourier", "amplitude"),
        ("none", "intensity"),
        ("bilinear", "poisson"),
    ],
)
def test_the_same_as_one_by_one(subpixel: Any, fidelity: Any, device: Pretended, launched: Counter[int]) -> None:
    toy = make(views=11, window=(8, 12), modes=2, uneven=True, subpixel=subpixel, fidelity=fidelity, noise=True)
    reconstructed(device, toy, GpuBackend(), fidelity=fidelity)
    # batches of 4, 3 and 4 views: the second of 4 is captured, and what is smaller is filled up
    assert launched == {4: 4}


@more
@pytest.mark.parametrize("subpixel", ["none", "fourier"])
def test_steps_of_a_batch_are_followed(
    subpixel: Any, device: Pretended, launched: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are not those with which a graph was captured: sums have the bits of kernels launched one by one, and
    the largest terms are the same."""
    sweep, tries = graphs.Graphs.sweep, count()

    def compared(
        self: graphs.Graphs, backend: Any, model: Any, chunk: Any, intermediates: Any, task: Any, into: Any, keep: bool
    ) -> Any:
        assert into.object is not None
        into.shifts.mul_(2.0 ** (next(tries) % 3))
        names = ("object", "object_weight", "probe", "probe_weight", "reached")
        wanted = replace(into, **{name: getattr(into, name).clone() for name in names})
        found = sweep(self, backend, model, chunk, intermediates, task, into, keep)
        if found is not None:
            again = replace(chunk, cache=BatchCache())
            intermediates = backend.forward(model, again, intermediates.whole_object, intermediates.probe)
            reference_of(Backend.sweep)(backend, model, again, intermediates, task, wanted)
            for name in names:
                assert torch.equal(getattr(into, name).here, getattr(wanted, name).here), name
        return found

    monkeypatch.setattr(graphs.Graphs, "sweep", compared)
    toy = make(views=8, window=(8, 16), modes=2, subpixel=subpixel)
    run(problem_on(device, toy, GpuBackend()), moved(toy.start(), device), "rpie", epochs=2, batch=2)
    assert launched == {2: 7}


def test_chunks_of_other_sizes_have_graphs_of_their_own(device: Pretended, launched: Counter[int]) -> None:
    reconstructed(device, make(views=5, window=(8, 12), subpixel="none"), GpuBackend(), limit=2, epochs=3)
    # 2 + 1 and 2: single views are too few for the graph of two
    assert launched == {2: 5, 1: 2}


@more
def test_none_where_waves_go_further(device: Pretended, launched: Counter[int]) -> None:
    toy = make(views=4, window=(8, 12))
    run(problem_on(device, toy, GpuBackend()), moved(toy.start(), device), "rpie", positions={"gain": 1}, batch=2)
    assert not launched


@more
@pytest.mark.parametrize(("subpixel", "limit", "wanted"), [("fourier", 2, {2: 7}), ("none", 0, {4: 3})])
def test_waves_that_are_kept(
    subpixel: str, limit: int, wanted: dict[int, int], device: Pretended, launched: Counter[int]
) -> None:
    """LSQML's, of a batch in one chunk and in two, whose waves do not overwrite each other."""
    toy = make(views=8, window=(8, 12), subpixel=subpixel)
    reconstructed(device, toy, GpuBackend(), limit, engine="lsqml")
    assert launched == wanted


def test_work_that_comes_again_is_launched_as_one(device: Pretended) -> None:
    """With what is brought as it is then; other tensors, and other kinds of numbers, are other work."""
    found, total = graphs.Graphs(lambda *_: None), device.far(torch.zeros(2))

    def work(given: torch.Tensor, brought: torch.Tensor) -> torch.Tensor:
        given.add_(1)
        return given + brought

    for k in range(4):
        before = device.launched["graph"]
        result = found.repeat(("sums",), work, (total,), (device.far(torch.full((2,), float(k))),))
        assert result.here.tolist() == [2 * k + 1.0] * 2 and device.launched["graph"] - before == (k > 0)
    assert (
        found.repeat(("sums",), work, (total,), (device.far(torch.full((2,), 0.5).double()),)).here.dtype.itemsize == 8
    )
    assert total.here.tolist() == [5, 5]
    other = device.far(torch.zeros(2))
    assert found.repeat(("sums",), work, (other,), (device.far(torch.ones(2)),)).here.tolist() == [2, 2]
    assert total.here.tolist() == [5, 5] and other.here.tolist() == [1, 1]


@more
def test_another_object_has_other_graphs(device: Pretended, launched: Counter[int]) -> None:
    toy = make(views=4, window=(8, 12))
    problem = reconstructed(device, toy, GpuBackend(), batch=2)
    assert launched == {2: 3}
    first = next(iter(held(problem)._graphs.values()))
    run(problem, moved(toy.start(), device), "rpie", batch=2)
    assert launched == {2: 6}
    assert [graph is first for graph in held(problem)._graphs.values()] == [False]


@more
def test_memory_that_is_short_is_given_back(device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, step, before = problem_on(device, make(views=4, window=(8, 12)), GpuBackend()), RPIE.step, []

    def starving(self: RPIE, *given: Any) -> None:
        before.append(len(held(problem)._graphs))
        if len(before) == 4:
            raise MemoryError
        step(self, *given)

    monkeypatch.setattr(RPIE, "step", starving)
    run(problem, moved(make(views=4, window=(8, 12)).start(), device), "rpie", batch=2)
    assert before == [0, 0, 1, 1, 0] and problem.loader.chunk_sizes.limit == 1


@more
def test_a_stage_begins_without(device: Pretended, launched: Counter[int]) -> None:
    toy = make(views=4, window=(8, 12))
    problem, state = problem_on(device, toy, GpuBackend()), RunState(moved(toy.start(), device))
    first, second = RPIE(epochs=2, batch=2), LSQML(epochs=1, batch=2, positions={"gain": 1})
    Loop(problem, state, [first, second], seed=7).run()
    assert launched == {2: 3} and not held(problem)._standing


@more
def test_what_cannot_be_captured_is_launched_one_by_one(
    device: Pretended, launched: Counter[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waiting(work: Any, *given: Any) -> Any:
        return device.captured(lambda: (work(), float(torch.zeros((), device=DEVICE)))[0], *given)

    monkeypatch.setattr(graphs, "captured", waiting)
    toy = make(views=4, window=(8, 12))
    problem = problem_on(device, toy, GpuBackend())
    state = run(problem, moved(toy.start(), device), "rpie")
    assert relative(state.estimate.object.here, run_here(toy, "rpie").object) < 1e-7  # type: ignore[attr-defined]
    said = capsys.readouterr().err
    assert said.count("chunks cannot be captured as CUDA graphs (operation not permitted") == 1 and not launched


def test_the_device_captures(device: Pretended) -> None:
    total, given = device.far(torch.zeros(2)), device.far(torch.ones(2))
    number = 2.0

    def work() -> torch.Tensor:
        total.add_(given * number)
        return total + 1

    replay, found, _ = device.captured(work, DEVICE, None)
    assert total.here.tolist() == [0, 0] and found.here.isnan().all()
    number = 5.0
    replay()
    given.fill_(3)
    replay()
    assert total.here.tolist() == [8, 8] and found.here.tolist() == [9, 9]


@pytest.mark.parametrize("task", ["exit_wave_update", "loss_gradient"])
@pytest.mark.parametrize(
    "fidelity", ["amplitude", pytest.param("poisson", marks=more), pytest.param("intensity", marks=more)]
)
@pytest.mark.parametrize(
    "subpixel", [pytest.param("none", marks=more), "fourier", pytest.param("bilinear", marks=more)]
)
def test_views_without_light_add_nothing(subpixel: str, fidelity: str, task: Any) -> None:
    """Whatever was counted: chunks are filled up with them."""
    case = Case(torch.complex64, subpixel=subpixel, fidelity=fidelity)
    backend, sums = GpuBackend(capture=False), nothing(case)
    dark = replace(case.chunk, weights=torch.zeros_like(case.chunk.weights), cache=BatchCache())
    backend.sweep(case.model, dark, backend.forward(case.model, dark, case.object, case.probe), task, sums)
    backend.finish(sums)
    for total in (sums.object, sums.object_weight, sums.probe):
        assert total is not None and not total.any()
    assert not sums.probe_weight.any()
