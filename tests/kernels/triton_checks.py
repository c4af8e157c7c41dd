"""Each of Triton's passes against its torch twin; test_triton.py runs this file, by the interpreter or on a GPU.

Triton decides when it is imported whether it interprets, so this needs a process of its own. The device is that of
PTYMESH_TRITON_DEVICE: cpu goes with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import (
    SIDE,
    Case,
    check_pixels_without_data,
    compare_detector,
    compare_scenes,
    compare_steps,
    compare_systems,
)

from ptymesh.engines import ENGINES
from ptymesh.kernels import triton_passes
from ptymesh.kernels.fused import FusedScene
from ptymesh.kernels.triton_passes import GpuPasses
from ptymesh.parallel.exact import FixedSum, Grid
from ptymesh.physics.passes import Adjoints, Passes
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

DEVICE = os.environ["PTYMESH_TRITON_DEVICE"]
SINGLE = torch.complex64


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles in a window, and views in several parts."""
    monkeypatch.setattr(triton_passes, "TILE", 256)


@pytest.fixture(autouse=True)
def one_part(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """All views in one sum, unless there are several tiles."""
    if "small_tiles" not in request.fixturenames:
        monkeypatch.setattr(triton_passes, "PROGRAMS", 1)


class GpuCase(Case):
    """The same inputs on the device, Triton's passes instead of numba's; few views, for the interpreter is slow."""

    device, views = DEVICE, 3 if DEVICE == "cpu" else 5

    @property
    def fused(self) -> Passes:
        return GpuPasses()


def test_the_scene_is_fused() -> None:
    for subpixel in ("fourier", "bilinear", "none"):
        assert type(GpuCase(subpixel=subpixel).scenes()[1][2]) is FusedScene


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_scene_and_adjoint(dtype: torch.dtype, subpixel: str) -> None:
    compare_scenes(GpuCase(dtype, (13, 22), 1 + (dtype == SINGLE), subpixel))


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
@pytest.mark.usefixtures("small_tiles")
def test_tiles_and_parts(subpixel: str) -> None:
    case = GpuCase(SINGLE, subpixel=subpixel)
    compare_scenes(case)
    compare_systems(case)
    for fidelity in ("amplitude", "poisson"):
        compare_detector(GpuCase(SINGLE, fidelity=fidelity, counts=torch.float32, seed=6), "revise")


def test_variable_probes() -> None:
    compare_scenes(GpuCase(SINGLE, opr=2))


def test_near_field() -> None:
    compare_scenes(GpuCase(SINGLE, propagation="angular_spectrum"))


def test_whole_positions_need_no_shift() -> None:
    case = GpuCase(SINGLE)
    compare_scenes(case, fractions=torch.zeros_like(case.chunk.fractions), whole=True)


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear"])
def test_position_steps(subpixel: str) -> None:
    compare_steps(GpuCase(torch.complex128 if subpixel == "bilinear" else SINGLE, modes=2, subpixel=subpixel))


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_systems(subpixel: str) -> None:
    compare_systems(GpuCase(torch.complex128 if subpixel == "none" else SINGLE, modes=2, subpixel=subpixel))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tile", [64, 512])
def test_sums_in_fixed_point(dtype: torch.dtype, parts: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_passes, "TILE", tile)
    rng = torch.Generator().manual_seed(3)
    values = torch.randn(6, 3, 9, 13, parts, generator=rng, dtype=dtype)
    values[0, 0, 0, :7, 0] = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -0.49999999999999994, 1e-30]) / 2**20
    values[1] *= 2.0**29  # nearly as large as they may be: whole numbers of any float
    corners = torch.stack((torch.randint(0, 12, (6,), generator=rng), torch.randint(0, 18, (6,), generator=rng)), 1)
    values, corners = values.to(DEVICE), corners.to(DEVICE)
    found = []
    for passes in (Passes(), GpuPasses()):
        out = torch.arange(2 * parts * 3 * 21 * 31, device=DEVICE).view(2, parts, 3, 21, 31) * 3
        for exponent, bits in ((20, 52), (24, 56)):
            assert passes.add_fixed(values, corners, exponent, bits, out)
        found.append(out)
    assert torch.equal(found[1], found[0]) and int(found[0].abs().max()) > 2**53


def test_values_beyond_fixed_point_are_told() -> None:
    largest = torch.full((1, 1, 3, 5, 1), 2.0**20, device=DEVICE)
    corners = torch.zeros(1, 2, dtype=torch.int64, device=DEVICE)
    out = torch.zeros(2, 1, 1, 8, 8, dtype=torch.int64, device=DEVICE)
    for value, fits in ((2.0**20, True), (-(2.0**20), True), (2.0**20 + 1, False), (float("nan"), False)):
        largest[0, 0, 1, 2, 0] = value
        for passes in (Passes(), GpuPasses()):
            assert bool(passes.add_fixed(largest, corners, 10, 30, out)) is fits
        total = FixedSum(out.view(2, 8, 8), Grid(1.0, 2), GpuPasses())
        total.grid.exponent, total.grid.bits = 10, 30
        total.add(largest[..., 0])
        assert int(total.spoilt) == (not fits)


def mapped(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory until they are written to, so that there may be many gigabytes of them."""
    import mmap

    count = 1
    for side in shape:
        count *= side
    quiet = getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | quiet)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


untouched = pytest.mark.skipif(DEVICE != "cpu" or sys.platform != "linux", reason="memory is mapped as Linux does")


@untouched
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_objects_of_more_than_2_31_pixels(subpixel: str) -> None:
    side, case = 46368, GpuCase(SINGLE, subpixel=subpixel, modes=1)
    place, end = side - SIDE, (slice(None), slice(-SIDE, None), slice(-SIDE, None))
    far, change = (mapped(1, side, side, dtype=SINGLE) for _ in range(2))
    far[end], d_object, chi = case.object, case.waves(1, SIDE, SIDE), case.many()
    change[end] = d_object
    found = []
    for obj, d_obj, offset in ((case.object, d_object, 0), (far, change, place)):
        sums = Adjoints(
            torch.zeros_like(obj) if offset == 0 else mapped(*obj.shape, dtype=SINGLE),
            torch.zeros_like(obj.real) if offset == 0 else mapped(*obj.shape, dtype=torch.float32),
            torch.zeros_like(case.probe),
            torch.zeros_like(case.probe[0].real),
            case.opr,
            case.opr.real,
        )
        passes, chunk = GpuPasses(), replace(case.chunk, anchors=case.chunk.anchors + offset, sweep={})
        scene = passes.scene(case.model, chunk, obj, case.probe)
        passes.adjoint(case.model, chunk, scene, chi, sums)
        passes.finish(sums)
        assert sums.object is not None and sums.object_weight is not None and sums.probe is not None
        steps = passes.position_step(case.model, chunk, obj, scene, chi) if subpixel == "fourier" else scene.exit
        systems = passes.systems(case.model, chunk, scene, d_obj, case.probe, chi)
        kept = (sums.object[end].clone(), sums.object_weight[end].clone(), sums.probe, sums.probe_weight)
        found.append((scene.windows, scene.exit, *kept, steps, systems))
    for near, distant in zip(*found, strict=True):
        assert float(near.abs().max()) > 0 and torch.equal(near, distant)


@untouched
def test_fixed_sums_of_more_than_2_31_numbers() -> None:
    side = 23184  # four planes
    values = torch.randn(1, 1, 3, 5, 2, generator=torch.Generator().manual_seed(1))
    corner = torch.tensor([[side - 4, side - 6]])
    out, near = mapped(2, 2, 1, side, side, dtype=torch.int64), torch.zeros(2, 2, 1, 8, 8, dtype=torch.int64)
    assert out.numel() > 2**31
    GpuPasses().add_fixed(values, corner, 20, 50, out)
    Passes().add_fixed(values, torch.tensor([[4, 2]]), 20, 50, near)
    assert torch.equal(out[..., -8:, -8:], near) and int(near.abs().max()) > 0


@pytest.mark.parametrize("counts", [np.uint8, np.uint16, np.uint32, np.int16, np.int32, np.float32, np.float64])
def test_counts(counts: type) -> None:
    compare_detector(GpuCase(SINGLE, counts=torch.from_numpy(np.empty(0, counts)).dtype), "revise")


@pytest.mark.parametrize("task", ["revise", "descend", "watch"])
@pytest.mark.parametrize("fidelity", ["amplitude", "poisson", "intensity"])
def test_detector(task: str, fidelity: str) -> None:
    for dtype, background in ((SINGLE, 2.0), (torch.complex128, 0.0)):
        given = {"background": background, "fidelity": fidelity, "counts": torch.float32, "seed": 6}
        compare_detector(GpuCase(dtype, (13, 22), 2, **given), task)


def test_pixels_without_data_stay() -> None:
    check_pixels_without_data(GpuCase(counts=torch.float64))


@pytest.mark.skipif(DEVICE != "cpu", reason="test_triton.py compares reconstructions on a GPU with those on the CPU")
@pytest.mark.parametrize(("engine", "case"), [("rpie", {"subpixel": "none"}), ("lsqml", {"modes": 2})])
def test_engines_end_where_the_twins_do(engine: str, case: dict) -> None:
    toy = make(views=8, window=(16, 20), **case)
    found = []
    for passes in (Passes(), GpuPasses()):
        problem, state = toy.problem(), RunState(toy.start())
        problem.passes = passes
        positions = {"positions": {"gain": 1}} if engine == "lsqml" else {}
        Loop(problem, state, [ENGINES[engine](epochs=1, batch=4, **positions)], seed=7).run()
        found.append(state.estimate)
    for name in ("object", "probe", "positions"):
        assert relative(getattr(found[1], name), getattr(found[0], name)) < 1e-11, "sums in another order"
