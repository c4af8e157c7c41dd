"""Each fused pass against its torch twin, on random inputs: sizes, modes, precisions, dtypes of counts, positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.kernels.cpu import CpuPasses
from ptymesh.physics.model import Model
from ptymesh.physics.passes import Adjoints, Chunk, Passes
from toy import geometry_for

#: Sums of float64 in another order; of float32, with rows summed in vectors.
TOLERANCE = {torch.complex128: 1e-12, torch.complex64: 3e-6}
DTYPES = [torch.complex64, torch.complex128]
WINDOWS = [(16, 16), (13, 22), (9, 7)]
VIEWS, SIDE = 5, 64


class Case:
    """Random object, probe, chunk and waves."""

    def __init__(
        self,
        dtype: torch.dtype = torch.complex128,
        window: tuple[int, int] = (13, 22),
        modes: int = 2,
        subpixel: str = "fourier",
        counts: torch.dtype = torch.uint16,
        background: float = 0.0,
        opr: int = 0,
        propagation: str = "far_field",
        fidelity: str = "amplitude",
        seed: int = 1,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        self.dtype, self.real, self.window, self.rng = dtype, real, window, rng
        geometry: Geometry = geometry_for(propagation, window)
        self.model = Model.for_geometry(geometry, subpixel=subpixel, fidelity=fidelity, dtype=dtype)  # type: ignore[arg-type]
        self.object, self.probe = self.waves(1, SIDE, SIDE), self.waves(modes, *window)
        self.opr = self.waves(opr, *window)
        anchors = torch.randint(2, SIDE - 26, (VIEWS, 2), generator=rng)
        fractions = (2 * torch.rand(VIEWS, 2, generator=rng, dtype=torch.float64) - 1).to(real)
        weights = 0.5 + torch.rand(VIEWS, 1 + opr, generator=rng, dtype=real)
        y = 3 * torch.rand(VIEWS, *window, generator=rng, dtype=torch.float64)
        if counts.is_floating_point or counts == torch.int32:
            y = torch.where(torch.rand(y.shape, generator=rng) < 0.1, -1.0, y)
        mask = torch.rand(window, generator=rng) < 0.8
        b = background * torch.rand(window, generator=rng, dtype=real)
        y = y.numpy().astype(str(counts).removeprefix("torch."))
        views = torch.arange(VIEWS)
        self.chunk = Chunk(views, views, anchors, fractions, weights, torch.from_numpy(y), mask, b)

    def waves(self, *shape: int) -> Tensor:
        """Complex normal numbers."""
        return torch.randn(shape, generator=self.rng, dtype=torch.complex128).to(self.dtype)

    def many(self) -> Tensor:
        """Waves (B, M, h, w)."""
        return self.waves(VIEWS, len(self.probe), *self.window)

    def scenes(self, **changes: Tensor) -> list:
        """The twin's scene and the fused one's."""
        chunk = replace(self.chunk, **changes, sweep={})
        return [(p, chunk, p.scene(self.model, chunk, self.object, self.probe, self.opr)) for p in self.both]

    @property
    def both(self) -> tuple[Passes, Passes]:
        """The twin and the kernels."""
        return Passes(), CpuPasses(self.dtype)

    def close(self, got: Tensor, wanted: Tensor) -> None:
        """To the precision, of the largest."""
        scale = float(wanted.abs().max())
        assert scale > 0
        assert float((got - wanted).abs().max()) <= TOLERANCE[self.dtype] * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_scene_and_adjoint(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> None:
    case = Case(dtype, window, modes, subpixel)
    waves = case.many()
    (twin, chunk, wanted), (fused, other, got) = case.scenes()
    for name in ("exit", "windows"):
        case.close(getattr(got, name), getattr(wanted, name))
    case.close(got.incoming[0].expand_as(wanted.incoming[0]), wanted.incoming[0])
    sums = [summed(case, *each, waves) for each in ((twin, chunk, wanted), (fused, other, got))]
    for name in ("object", "object_weight", "probe", "probe_weight"):
        case.close(getattr(sums[1], name), getattr(sums[0], name))


def summed(case: Case, passes: Passes, chunk: Chunk, scene: object, waves: Tensor, twice: bool = True) -> Adjoints:
    """Adjoints of the waves, of two chunks."""
    real = torch.zeros(1, SIDE, SIDE, dtype=case.real)
    sums = Adjoints(
        real.to(case.dtype),
        real,
        torch.zeros_like(case.probe),
        torch.zeros_like(case.probe[0].real),
        torch.zeros_like(case.opr),
        torch.zeros_like(case.opr.real),
    )
    for factor in (1, 0.5) if twice else (1,):
        passes.adjoint(case.model, chunk, scene, factor * waves, sums)  # type: ignore[arg-type]
    passes.finish(sums)
    return sums


def test_object_or_probe_alone() -> None:
    case = Case()
    waves = case.many()
    _, (fused, chunk, scene) = case.scenes()
    whole = summed(case, fused, chunk, scene, waves, twice=False)
    for left_out in ("object", "probe"):
        sums = Adjoints(
            torch.zeros_like(case.object),
            torch.zeros_like(case.object.real),
            torch.zeros_like(case.probe),
            torch.zeros_like(case.probe[0].real),
            case.opr.clone(),
            case.opr.real.clone(),
        )
        setattr(sums, left_out, None)
        fused.adjoint(case.model, chunk, scene, waves, sums)
        fused.finish(sums)
        for name in {"object", "probe"} - {left_out}:
            assert torch.equal(getattr(sums, name), getattr(whole, name))
        if left_out == "probe":
            assert float(sums.probe_weight.max()) == 0


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_variable_probes(subpixel: str) -> None:
    case = Case(opr=2, subpixel=subpixel)
    waves = case.many()
    (twin, chunk, wanted), (fused, other, got) = case.scenes()
    case.close(got.exit, wanted.exit)
    sums = [summed(case, *each, waves) for each in ((twin, chunk, wanted), (fused, other, got))]
    for name in ("object", "object_weight", "probe", "probe_weight", "opr", "opr_weight"):
        case.close(getattr(sums[1], name), getattr(sums[0], name))


def test_near_field() -> None:
    case = Case(propagation="angular_spectrum", modes=2)
    (twin, chunk, wanted), (fused, other, got) = case.scenes()
    chi = case.many()
    case.close(got.exit, wanted.exit)
    steps = [p.position_step(case.model, c, case.object, s, chi) for p, c, s in case.scenes()]
    case.close(steps[1], steps[0])
    detected = case.model.detect(wanted.exit, chunk.fractions)
    case.close(fused.revise(case.model, other, detected.clone()), twin.revise(case.model, chunk, detected))


def test_whole_positions_need_no_shift() -> None:
    case = Case()
    case.chunk = replace(case.chunk, fractions=torch.zeros(VIEWS, 2, dtype=case.real))
    scenes = case.scenes(whole=True)
    assert scenes[1][2].beams.waves.shape[0] == 1
    case.close(scenes[1][2].exit, scenes[0][2].exit)
    waves, chi = case.many(), case.many()
    sums = [summed(case, *each, waves) for each in scenes]
    case.close(sums[1].probe, sums[0].probe)
    steps = [p.position_step(case.model, c, case.object, s, chi) for p, c, s in scenes]
    case.close(steps[1], steps[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear"])
def test_position_steps(dtype: torch.dtype, modes: int, subpixel: str) -> None:
    case = Case(dtype, modes=modes, subpixel=subpixel)
    chi = case.many()
    steps = [p.position_step(case.model, c, case.object, s, chi) for p, c, s in case.scenes()]
    assert steps[1].dtype == torch.float64
    case.close(steps[1], steps[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_systems(dtype: torch.dtype, modes: int, subpixel: str) -> None:
    case = Case(dtype, modes=modes, subpixel=subpixel)
    d_object, d_probe, chi = case.waves(1, SIDE, SIDE), case.waves(modes, *case.window), case.many()
    for few in {1, modes}:
        found = [p.systems(case.model, c, s, d_object, d_probe, chi[:, :few]) for p, c, s in case.scenes()]
        case.close(found[1], found[0])


@pytest.mark.parametrize("counts", [np.uint8, np.uint16, np.uint32, np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts(counts: type, dtype: torch.dtype) -> None:
    compare(Case(dtype, counts=torch.from_numpy(np.empty(0, counts)).dtype), "revise")


@pytest.mark.parametrize("task", ["revise", "descend", "watch"])
@pytest.mark.parametrize("fidelity", ["amplitude", "poisson", "intensity"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("background", [0.0, 2.0])
def test_detector(task: str, fidelity: str, dtype: torch.dtype, background: float) -> None:
    for window, modes in zip(WINDOWS, (1, 2, 3), strict=True):
        case = Case(
            dtype, window, modes, background=background, fidelity=fidelity, counts=torch.float32, seed=modes + 4
        )
        compare(case, task)


def compare(case: Case, task: str) -> None:
    """Waves and sums of one task."""
    detected = case.many()
    detected[0, :, 0, 0] = 0  # dark where there may be counts
    changed, found = [], []
    for passes in case.both:
        waves = detected.clone()
        found.append(getattr(passes, task)(case.model, replace(case.chunk, sweep={}), waves))
        changed.append(waves)
    assert (task == "watch") == torch.equal(changed[1], detected)
    finite = changed[0].abs() < 1e6  # the dark pixel's change is 0 times a large number
    case.close(changed[1][finite], changed[0][finite])
    for column in range(found[0].shape[1]):
        case.close(found[1][:, column], found[0][:, column])


def test_pixels_without_data_stay() -> None:
    case = Case(counts=torch.float64)
    counts = case.chunk.counts.clone()
    counts[1, 3, 4], counts[2, 5, 6] = float("nan"), -1.0
    mask = torch.ones(case.window, dtype=torch.bool)
    mask[7, 8] = False
    detected = case.many()
    CpuPasses(case.dtype).revise(case.model, replace(case.chunk, counts=counts, mask=mask, sweep={}), detected)
    for view, y, x in ((1, 3, 4), (2, 5, 6), (0, 7, 8)):
        assert float(detected[view, :, y, x].abs().max()) == 0
    assert float(detected[0, :, 5, 6].abs().max()) > 0


def test_threads_do_not_change_a_bit() -> None:
    case = Case(torch.complex64, modes=3)
    waves, before = case.many(), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            (_, (fused, chunk, scene)) = case.scenes()
            found.append((scene.exit, summed(case, fused, chunk, scene, waves)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][0], found[1][0])
    for name in ("object", "object_weight", "probe", "probe_weight"):
        assert torch.equal(getattr(found[0][1], name), getattr(found[1][1], name))
