"""How much a batch launches, waits and compiles may only become less; test_triton.py runs this file by the interpreter.

Counted on the pretended device (pretended.py): kernels of torch and Triton, copies, and launches of graphs. The nodes
of a graph are not counted, which a GPU goes through by itself. What is reached is the limit: who makes it less lowers
it, and says so in docs/background/benchmarks.md.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pretended import Pretended
from wait_checks import device, moved, problem_on, run, within_epochs

from ptymesh.kernels.gpu.backend import GpuBackend
from ptymesh.run import memory
from toy import make

__all__ = ["device"]

#: Launches of a batch, and kernels that a run has compiled: by engine and sub-pixel positions.
LAUNCHED = {
    ("rpie", "none"): (23, 12),
    ("rpie", "fourier"): (23, 14),
    ("adam", "fourier"): (70, 13),
    ("lsqml", "fourier"): (48, 16),
}
#: Engine, how the toy is made, options of the stage, and times that a batch waits for the device, at most; all other
#: engines never do (wait_checks.py). Where slices move, their distance is read, and kernels of the next are brought.
WAITED: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "cg": ("cg", {}, {}, 2),
    "bh": ("bh", {}, {}, 1),
    "lbfgs": ("lbfgs", {}, {}, 3),
    "slice spacing": ("adam", {"slices": 2}, {"unknowns": {"slice_spacing": True}}, 1),
    "slice spacing and tilt": ("adam", {"slices": 2}, {"unknowns": {"slice_spacing": True, "tilt": True}}, 1),
}


@pytest.fixture
def counted(device: Pretended, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Launches of each batch, with what comes after it."""
    found: list[int] = []
    step = memory.step

    def counting(*given: Any, **options: Any) -> None:
        found.append(sum(device.launched.values()))
        step(*given, **options)

    monkeypatch.setattr(memory, "step", counting)
    return found


@pytest.mark.parametrize("case", LAUNCHED, ids=", ".join)
def test_launches_of_a_batch_and_compiled_kernels(case: tuple[str, Any], device: Pretended, counted: list[int]) -> None:
    engine, subpixel = case
    toy = make(views=16, window=(8, 12), subpixel=subpixel)
    problem = problem_on(device, toy, GpuBackend())
    problem.loader.chunk_sizes.limit = 0
    run(problem, moved(toy.start(), device), engine, epochs=3)
    assert len(counted) == 12
    # of the last epoch; the one before has captured what is worth it
    launched = max(after - before for before, after in pairwise(counted[8:]))
    most, kernels = LAUNCHED[case]
    assert launched <= most and len(device.variants) <= kernels, f"{launched} launches, {len(device.variants)} kernels"
    assert launched > 15, "they were counted"


@pytest.mark.parametrize("case", WAITED)
def test_waits_of_a_batch(case: str, device: Pretended) -> None:
    engine, made, options, most = WAITED[case]
    toy = make(views=8, window=(8, 12), **made)
    start = toy.start()
    state = run(problem_on(device, toy, GpuBackend()), moved(start, device), engine, epochs=3, **options)
    found = within_epochs(device)
    waited = len(found) / 6
    assert waited <= most, f"{waited:.1f} a batch: {sorted(set(found))}"
    for name, value in (("slice_spacing", "slice_spacing_m"), ("tilt", "tilt_rad")):
        if name in options.get("unknowns", {}):
            assert getattr(state.estimate, value) != getattr(start, value), "it has moved"
