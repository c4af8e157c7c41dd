"""Within an epoch the host never waits for a GPU; test_triton.py runs this file by Triton's interpreter.

The device is pretended (pretended.py). What a stage's first batch does, which keeps a copy of what it began with, is
left out, and so is everything between epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pretended import DEVICE, Far, Pretended
from torch import Tensor

from ptymesh import kernels
from ptymesh.distributed.exact import Reduction
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.errors import Interrupted
from ptymesh.kernels.gpu import backend as triton_backend
from ptymesh.kernels.gpu import graphs
from ptymesh.kernels.gpu.backend import GpuBackend
from ptymesh.physics.backend import Backend
from ptymesh.problem import Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative, share


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """The pretended device; Triton's kernels work on the values."""
    device = Pretended()
    fused_by_triton(device, monkeypatch)
    with device:
        yield device


def fused_by_triton(device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels work on the device's values, in turn with all else, and sweeps are captured."""
    launch = triton_backend._launch

    def launched(kernel: Any, programs: int, *given: Any, **flags: Any) -> None:
        assert all(isinstance(g, Far) for g in given if isinstance(g, Tensor)), "a kernel got a tensor of the host"
        values = [g.memory if isinstance(g, Far) else g for g in given]
        used = [g for g in given if isinstance(g, Far)]
        kinds = tuple(str(g.dtype) if isinstance(g, Tensor) else (g == 1, g % 16 == 0) for g in given)
        device.variants.add((kernel.__name__, kinds, tuple(sorted(flags.items()))))
        device.launch(lambda: launch(kernel, programs, *values, **flags), True, used, kernel.__name__)

    monkeypatch.setattr(triton_backend, "_launch", launched)
    monkeypatch.setattr(kernels, "_launches", lambda device: True)
    monkeypatch.setattr(graphs, "CAPTURING", (DEVICE.type,))
    monkeypatch.setattr(graphs, "captured", lambda *given: device.captured(*given))


def moved(value: Any, device: Pretended) -> Any:
    """An estimate or a model on the device."""

    def there(given: Any) -> Any:
        if isinstance(given, Tensor):
            return device.far(given)
        of_tensors = isinstance(given, tuple) and given and all(isinstance(one, Tensor) for one in given)
        return tuple(map(device.far, given)) if of_tensors else given

    return replace(value, **{f.name: there(getattr(value, f.name)) for f in fields(value)})


def problem_on(device: Pretended, toy: Toy, backend: Backend, layout: str = "replicated") -> Problem:
    """The toy as a rank with this device sees it, three views at a time."""
    world, scan = Solo(DEVICE), toy.measurement
    owners = Replicated(world, scan.positions) if layout == "replicated" else Tiled(world, scan.positions, scan.window)
    problem = Problem(moved(toy.model, device), scan, owners, toy.truth.object.dtype)
    problem.backend = backend
    problem.loader.chunk_sizes.limit = 3
    return problem


def run(problem: Problem, estimate: Any, engine: str, **options: Any) -> RunState:
    state, options = RunState(estimate), {"epochs": 2, **options}
    if ENGINES[engine].model_fields["batch"].annotation is not type(None):
        options = {"batch": 4, **options}
    Loop(problem, state, [ENGINES[engine](**options)], seed=7).run()
    return state


def within_epochs(device: Pretended) -> list[tuple[str, str]]:
    """What waited in a batch, and where."""
    found = []
    for what, stack in device.waits:
        if "run/loop.py:_batches" in stack and not any(
            "Snapshot" in at or at.endswith(":_copy_to_host") for at in stack
        ):
            found.append((what, " < ".join(stack[:4])))
    return found


#: Engines that are run with Triton's kernels, which the interpreter takes its time for.
FUSED = {"rpie", "lsqml", "adam", "dm"}
#: Line searches decide by values, on the host.
SEARCHES = {"lbfgs", "cg", "bh"}
#: What else a batch may be asked for: how the toy is made, and options of the stage.
MORE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "beams": ("rpie", {"varying": True}, {"probe": {"intensity": True}}),
    "bilinear": ("rpie", {"subpixel": "bilinear"}, {"positions": True}),
    "near field": ("lsqml", {"propagation": "angular_spectrum"}, {"positions": True}),
    "slices": ("lsqml", {"slices": 2}, {}),
    "slices, Adam": ("adam", {"slices": 3}, {"positions": {"gain": 1}}),
    "poisson": ("rpie", {"fidelity": "poisson", "noise": True}, {"fidelity": "poisson"}),
    "compact": ("lsqml", {}, {"order": "compact", "momentum": True, "probe_direction": "weighted"}),
    "unknowns": (
        "adam",
        {"varying": True, "background": 2.0},
        {
            "probe": {"opr": False},
            "unknowns": {"positions": True, "weights": True, "background": True},
            "positions": {"gain": 1},
            "parametrisation": "amplitude_phase",
            "regularisers": [{"kind": "tv", "weight": 0.01}],
            "scheduler": {"name": "ReduceLROnPlateau"},
        },
    ),
    "averaged": ("adam", {}, {"averaged": 0.1}),
    "powers": ("sgd", {}, {"loss": "nrmse", "power": 0.5}),
}


#: Of what takes long in the interpreter, `make test` has a sample, and `make stand-in` all.
more = pytest.mark.stand_in


def sampled(cases: Iterable[str], sample: str) -> list[Any]:
    """All of them, of which `make test` has this one alone."""
    return [case if case == sample else pytest.param(case, marks=more) for case in cases]


@pytest.mark.parametrize("engine", sampled((name for name in ENGINES if name not in SEARCHES), "mpie"))
def test_no_batch_waits(engine: str, device: Pretended) -> None:
    backend = GpuBackend() if engine in FUSED else Backend()
    compare(device, make(views=8, window=(8, 12)), engine, backend, positions={"gain": 1})


@more
@pytest.mark.parametrize("case", MORE)
def test_nor_with_more_to_do(case: str, device: Pretended) -> None:
    engine, toy, options = MORE[case]
    compare(device, make(views=8, window=(8, 12), **toy), engine, **options)


def test_nor_after_a_checkpoint_is_read(device: Pretended) -> None:
    """Whatever an engine remembers comes back on the device; what counts batches is fetched once."""
    toy = make(views=8, window=(8, 12), subpixel="none")
    problem, state = problem_on(device, toy, Backend()), RunState(moved(toy.start(), device))
    engine = ENGINES["mpie"](epochs=1, batch=2, momentum_every=2)
    Loop(problem, state, [engine]).run()
    state.stage = state.epoch = 0
    state.engines[0] = {name: kept.to(DEVICE) for name, kept in engine.state.items()}
    device.waits.clear()
    Loop(problem, state, [engine]).run()
    (found,) = within_epochs(device)
    assert "engines/pie.py:step" in found[1]


#: At rates that stay: those of a scheduler depend on the number of epochs.
REMEMBERED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {"scheduler": None} if "scheduler" in one.model_fields else {}) for name, one in ENGINES.items()},
    "momentum": ("lsqml", {"momentum": {"memory": 1}, "positions": True}),
    "compact momentum": ("lsqml", {"order": "compact", "momentum": {"memory": 1}}),
    "plateau": ("adam", {"scheduler": {"name": "ReduceLROnPlateau"}, "positions": {"gain": "auto"}}),
}


@pytest.mark.parametrize("case", sampled(REMEMBERED, "mpie"))
def test_engines_go_on_with_their_memory_on_the_device(case: str, device: Pretended) -> None:
    """As a checkpoint is read: all of it, what was kept on the host too."""
    engine, options = REMEMBERED[case]
    toy = make(views=8, window=(8, 12))
    problem = problem_on(device, toy, Backend())
    state = run(problem, moved(toy.start(), device), engine, epochs=2, **options)
    state.stage, memory = 0, {name: kept.to(DEVICE) for name, kept in state.engines[0].items()}
    state.engines[0], state.epoch = memory, 2
    each = {} if ENGINES[engine].model_fields["batch"].annotation is type(None) else {"batch": 4}
    Loop(problem, state, [ENGINES[engine](epochs=4, **each, **options)], seed=7).run()
    wanted = run_here(toy, engine, epochs=4, **options)
    assert relative(state.estimate.object.here, wanted.object) < 1e-7  # type: ignore[attr-defined]


def test_nor_with_tiles(device: Pretended) -> None:
    compare(device, make(views=8, window=(8, 12)), "rpie", Backend(), "tiled", positions=True)


@more
def test_whole_positions_do_not_wait_either(device: Pretended) -> None:
    toy = make(views=8, window=(8, 12), subpixel="none")
    state = run(problem_on(device, toy, GpuBackend()), moved(toy.start(), device), "rpie")
    assert within_epochs(device) == []
    wanted = run_here(toy, "rpie")
    for name in ("object", "probe"):
        assert relative(getattr(state.estimate, name).here, getattr(wanted, name)) < 1e-12


def test_exact_sums_have_the_same_limbs_unasked(device: Pretended) -> None:
    values = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1e-30
    values[:10] *= 1e60
    values[0, 1], values[1, 2] = float("nan"), float("inf")
    sums = [Reduction((3,), values.device), Reduction((3,), DEVICE)]
    for some, total in zip((values, device.far(values)), sums, strict=True):
        total.add(some)
    assert torch.equal(sums[1].local.here, sums[0].local) and device.waits == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("refined", [False, True])
def test_whole_positions_are_known_where_none_moves(refined: bool, device: Pretended) -> None:
    toy = make(views=8, window=(8, 12))
    toy.truth.positions.round_()
    problem, estimate = problem_on(device, toy, Backend()), moved(toy.start(), device)
    found = []

    class Noting(Backend):
        def forward(self, model: Any, chunk: Any, *arrays: Any) -> Any:
            found.append(chunk.integer_positions)
            return super().forward(model, chunk, *arrays)

    problem.backend = Noting()
    run(problem, estimate, "rpie", positions={"gain": 1} if refined else None)
    assert len(found) == 8 and found.count(True) == (0 if refined else 8), "all ranks shift, or none does"
    assert within_epochs(device) == []


@pytest.mark.parametrize("after", [1, 2])
def test_the_wish_to_stop_is_read_a_batch_later(after: int, device: Pretended) -> None:
    toy = make(views=8, window=(8, 12), subpixel="none")

    def stopped(problem: Problem, estimate: Any) -> tuple[int, int]:
        """Epochs and batches done when it is asked to stop before this batch."""
        state, asked = RunState(estimate), iter([*[False] * (after - 1), *[True] * 9])
        with pytest.raises(Interrupted):
            Loop(problem, state, [ENGINES["rpie"](epochs=2, batch=4)], stop=lambda: next(asked)).run()
        return state.epoch, state.batch

    problem = problem_on(device, toy, Backend())
    assert stopped(problem, moved(toy.start(), device)) == (0, 2), "never later than the epoch's last batch"
    with torch.utils._python_dispatch._disable_current_modes():
        assert stopped(toy.problem(), toy.start()) == (0, after)


def test_the_device_notices(device: Pretended) -> None:
    here, there = torch.arange(6.0), device.far(torch.arange(6.0))
    harmless = [
        lambda: there[torch.arange(2, device=DEVICE)],
        lambda: there.add_(1).sum().sqrt(),
        lambda: here.pin_memory().to(DEVICE, non_blocking=True),
        lambda: torch.where(there > 1, there, 0.0),
        lambda: there.new_zeros(3),
        lambda: there.index_fill_(0, torch.arange(2, device=DEVICE), 1.0),
    ]
    for action in harmless:
        action()
        assert device.waits == []
    waiting = [
        lambda: float(there.sum()),
        lambda: bool((there > 1).any()),
        lambda: there.tolist(),
        lambda: there.cpu(),
        lambda: here.to(DEVICE),
        lambda: here.to(DEVICE, non_blocking=True),
        lambda: torch.tensor([1, 2], device=DEVICE),
        lambda: there[there > 1],
        lambda: there[[0, 2]],
        lambda: there[np.array([0, 2])],
        lambda: there.nonzero(),
        lambda: here.copy_(there),
        lambda: torch.equal(there, there),
    ]
    for number, action in enumerate(waiting, start=1):
        action()
        assert len(device.waits) == number, number
    with pytest.raises(AssertionError, match="here and there"):
        there + here


def compare(
    device: Pretended, toy: Toy, engine: str, backend: Backend | None = None, layout: str = "replicated", **options: Any
) -> None:
    """No batch waits, and what comes out is what the host computes."""
    problem = problem_on(device, toy, backend or GpuBackend(), layout)
    state = run(problem, moved(share(toy.start(), problem), device), engine, **options)
    assert within_epochs(device) == []
    assert device.waits, "between epochs there are some"
    each = 1 if ENGINES[engine].model_fields["batch"].annotation is type(None) else 2
    assert len(device.awaited) == 2 * each, "every wish to stop was read"
    # of torch's operations, which are few in a batch whose work is captured; none lie between where it is read at once
    assert each == 1 or min(device.awaited[::2]) > 10, "when the batch after it had been queued"
    wanted = run_here(toy, engine, **options)
    assert relative(state.estimate.object.here, wanted.object) < 1e-7  # type: ignore[attr-defined]


def run_here(toy: Toy, engine: str, **options: Any) -> Any:
    """The estimate that the host ends with."""
    with torch.utils._python_dispatch._disable_current_modes():
        problem = toy.problem()
        problem.loader.chunk_sizes.limit = 3
        return run(problem, toy.start(), engine, **options).estimate
