"""Each of Triton's passes against its torch reference; test_triton.py runs this file, by the interpreter or on a GPU.

Triton decides when it is imported whether it interprets, so this needs a process of its own. The device is that of
PTYMESH_TRITON_DEVICE: cpu goes with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from references import (
    PIECES,
    SIDE,
    Case,
    add_fidelity,
    check_pixels_without_data,
    compare_detector,
    compare_entries,
    compare_gaps,
    compare_scenes,
    compare_steps,
    compare_systems,
    nothing,
)
from torch import Tensor

from ptymesh.engines import ENGINES
from ptymesh.kernels.fused import FusedIntermediates, KeptProbes, StackedIntermediates
from ptymesh.kernels.gpu import backend as triton_backend
from ptymesh.kernels.gpu.backend import GpuBackend
from ptymesh.physics.backend import Adjoints, Backend, BatchCache, Chunk
from ptymesh.physics.half_precision import Halves
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.rounding import shifts_for
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

DEVICE = os.environ["PTYMESH_TRITON_DEVICE"]
SINGLE = torch.complex64
#: Sums that adjoints of waves are added to.
NAMES = ("object", "object_weight", "probe", "probe_weight")


#: Of what takes long in the interpreter, `make test` has a sample, and `make stand-in` all; a GPU does all each time.
more = pytest.mark.stand_in if DEVICE == "cpu" else pytest.mark.gpu


def sampled(*cases: Any) -> list[Any]:
    """All of them, of which `make test` has the first alone."""
    return [cases[0], *(pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=more) for c in cases[1:])]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles in a window, and views in several parts."""
    monkeypatch.setattr(triton_backend, "TILE", 256)


@pytest.fixture(autouse=True)
def one_part(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """All views in one sum, unless there are several tiles."""
    if "small_tiles" not in request.fixturenames:
        monkeypatch.setattr(triton_backend, "PROGRAMS", 1)


class GpuCase(Case):
    """The same inputs on the device, Triton's passes instead of numba's; few views, for the interpreter is slow."""

    device, views = DEVICE, 3 if DEVICE == "cpu" else 5

    @property
    def fused(self) -> Backend:
        return GpuBackend()


def test_one_small_kernel_is_tried() -> None:
    triton_backend.tried(torch.device(DEVICE))


def test_the_scene_is_fused() -> None:
    for subpixel in ("fourier", "bilinear", "none"):
        assert type(GpuCase(subpixel=subpixel).forwards()[1][2]) is FusedIntermediates


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_scene_and_adjoint(dtype: torch.dtype, subpixel: str) -> None:
    compare_scenes(GpuCase(dtype, (13, 22), 1 + (dtype == SINGLE), subpixel))


@pytest.mark.parametrize(
    "kind",
    sampled(
        {"slices": 3},
        {"slices": 2, "subpixel": "bilinear"},
        {"slices": 2, "subpixel": "none", "propagation": "angular_spectrum"},
        {"slices": 2, "opr": 1, "dtype": torch.complex128},
    ),
)
def test_several_slices(kind: dict[str, Any]) -> None:
    """One after the other; what torch makes of single views finds its waves."""
    case = GpuCase(**{"dtype": SINGLE, **kind})
    assert type(case.forwards()[1][2]) is StackedIntermediates
    compare_scenes(case)
    compare_systems(case)
    compare_gaps(case)
    if case.model.subpixel != "none":
        compare_steps(case)


@pytest.mark.parametrize("piece", sampled(*PIECES))
def test_a_piece_that_no_kernel_knows_goes_to_the_reference(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_fidelity(monkeypatch)
    for kind in ({}, {"slices": 2}):
        case = GpuCase(torch.complex128, (8, 12), **kind)
        case.model = PIECES[piece](case)
        compare_entries(case)


@more
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
@pytest.mark.usefixtures("small_tiles")
def test_tiles_and_parts(subpixel: str) -> None:
    case = GpuCase(SINGLE, subpixel=subpixel)
    compare_scenes(case)
    compare_systems(case)
    for fidelity in ("amplitude", "poisson"):
        compare_detector(GpuCase(SINGLE, fidelity=fidelity, counts=torch.float32, seed=6), "exit_wave_update")


def test_variable_probes() -> None:
    compare_scenes(GpuCase(SINGLE, opr=2))


def test_near_field() -> None:
    compare_scenes(GpuCase(SINGLE, propagation="angular_spectrum"))


def test_whole_positions_need_no_shift() -> None:
    case = GpuCase(SINGLE)
    compare_scenes(case, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear"])
def test_position_steps(subpixel: str) -> None:
    compare_steps(GpuCase(torch.complex128 if subpixel == "bilinear" else SINGLE, modes=2, subpixel=subpixel))


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_systems(subpixel: str) -> None:
    compare_systems(GpuCase(torch.complex128 if subpixel == "none" else SINGLE, modes=2, subpixel=subpixel))


def test_probes_of_views_are_kept_as_halves() -> None:
    """And come back in memory of their own each time, or as they were where precision is not mixed."""
    case, backend = GpuCase(SINGLE, (4, 6), 1), GpuBackend(capture=False)
    given = backend.forward(case.model, case.chunk, case.object, case.probe)
    assert isinstance(given, FusedIntermediates)
    waves = given.beams.waves.clone()
    assert backend.keep_intermediates(given)() is given and torch.equal(given.beams.waves, waves)
    kept = backend.keep_intermediates(given, halves=True)
    assert isinstance(kept, KeptProbes) and isinstance(kept.probes, Halves) and "beams" not in vars(given)
    again = kept()
    assert isinstance(again, FusedIntermediates) and torch.equal(again.beams.waves, Halves.of(waves).waves)
    assert 0 < relative(again.beams.waves.cpu(), waves.cpu()) < 4.9e-4 and "beams" not in vars(given)


def empty(case: GpuCase, parts: int) -> Adjoints:
    """Sums without any term, in so many parts."""
    sums = nothing(case)
    fields = {name: getattr(sums, name) for name in NAMES}
    made = {name: f.new_zeros((parts * (len(f) // sums.parts), *f.shape[1:])) for name, f in fields.items()}
    return replace(sums, parts=parts, **made)


def some_of(chunk: Chunk, places: list[int]) -> Chunk:
    """These views of a chunk, in this order."""
    given = {name: getattr(chunk, name) for name in ("views", "rows", "anchors", "fractions", "weights", "counts")}
    return replace(chunk, **{name: value[places].contiguous() for name, value in given.items()}, cache=BatchCache())


@pytest.mark.parametrize("parts", sampled(2, 1))
@pytest.mark.parametrize("dtype", sampled(SINGLE, torch.complex128))
@pytest.mark.parametrize("subpixel", sampled("fourier", "bilinear", "none"))
def test_sums_have_the_same_bits_in_any_order(
    subpixel: str, dtype: torch.dtype, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of views, in any chunks, tiles and programs."""
    case, found = GpuCase(dtype, (16, 32), subpixel=subpixel), []
    waves, last = case.many(), case.views - 1
    whole, single = [list(range(case.views))], [[k] for k in range(case.views)]
    backwards, two = [whole[0][::-1]], [[last, 0], whole[0][1:last]]
    for chunks, tile, programs in ((whole, 512, 1), (single, 512, 1), (backwards, 64, 1), (two, 128, 4096)):
        monkeypatch.setattr(triton_backend, "TILE", tile)
        monkeypatch.setattr(triton_backend, "PROGRAMS", programs)
        backend, sums = GpuBackend(), empty(case, parts)
        for places in chunks:
            chunk = some_of(case.chunk, places)
            intermediates = backend.forward(case.model, chunk, case.object, case.probe)
            backend.adjoint(case.model, chunk, intermediates, waves[places], sums)
        found.append([getattr(sums, name) for name in (*NAMES, "reached")])
    for other in found[1:]:
        for got, wanted in zip(other, found[0], strict=True):
            assert float(wanted.abs().max()) > 0 and torch.equal(got, wanted)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [SINGLE, torch.complex128])
@pytest.mark.usefixtures("small_tiles")
def test_terms_are_rounded_as_the_twin_rounds_them(dtype: torch.dtype, parts: int) -> None:
    """To the last bit, where they have few; the first part's step is larger than their last bit."""
    case = GpuCase(dtype, subpixel="none")
    waves, found = few_bits(case.many()), []
    case.object, case.probe = few_bits(case.object), few_bits(case.probe)
    chunk = replace(case.chunk, weights=(2 * case.chunk.weights).ceil() / 2, cache=BatchCache())
    shifts, _ = shifts_for(torch.full((SUMS,), 2.0**42), 4 * case.views)
    for backend in case.both:
        sums = replace(empty(case, parts), shifts=shifts.to(DEVICE))
        intermediates = backend.forward(case.model, chunk, case.object, case.probe)
        backend.adjoint(case.model, chunk, intermediates, waves, sums)
        found.append(sums)
    for name in (*NAMES, "reached"):
        assert torch.equal(getattr(found[1], name), getattr(found[0], name)), name
    for name in NAMES:
        first, *rest = getattr(found[1], name).split(len(getattr(found[1], name)) // parts)
        assert bool(first.any()) and all(bool(part.any()) for part in rest)


def few_bits(values: Tensor) -> Tensor:
    """Multiples of 1/8 near these numbers, within 2."""
    return torch.view_as_complex((8 * torch.view_as_real(values)).round().clamp(-16, 16) / 8)


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
@pytest.mark.parametrize("subpixel", sampled("none", "fourier"))
def test_objects_of_more_than_2_31_pixels(subpixel: str) -> None:
    side, case = 46368, GpuCase(SINGLE, subpixel=subpixel, modes=1)
    place, end = side - SIDE, (slice(None), slice(-SIDE, None), slice(-SIDE, None))
    far, change = (mapped(1, side, side, dtype=SINGLE) for _ in range(2))
    far[end], d_object, chi = case.object, case.waves(1, SIDE, SIDE), case.many()
    change[end] = d_object
    found = []
    for obj, d_obj, offset in ((case.object, d_object, 0), (far, change, place)):
        sums = replace(
            empty(case, 2),
            object=mapped(2, *obj.shape[1:], dtype=torch.complex128),
            object_weight=mapped(2, *obj.shape[1:], dtype=torch.float64),
        )
        backend, chunk = GpuBackend(), replace(case.chunk, anchors=case.chunk.anchors + offset, cache=BatchCache())
        intermediates = backend.forward(case.model, chunk, obj, case.probe)
        backend.adjoint(case.model, chunk, intermediates, chi, sums)
        backend.finish(sums)
        assert sums.object is not None and sums.object_weight is not None and sums.probe is not None
        steps = (
            backend.position_step(case.model, chunk, obj, case.probe, case.opr, intermediates, chi)
            if subpixel == "fourier"
            else intermediates.exit
        )
        systems = backend.systems(case.model, chunk, intermediates, d_obj, case.probe, chi)
        kept = (sums.object[end].clone(), sums.object_weight[end].clone(), sums.probe, sums.probe_weight)
        found.append((intermediates.windows, intermediates.exit, *kept, sums.reached, steps, systems))
    for near, distant in zip(*found, strict=True):
        assert float(near.abs().max()) > 0 and torch.equal(near, distant)


@pytest.mark.parametrize("counts", sampled(np.uint16, np.uint8, np.uint32, np.int16, np.int32, np.float32, np.float64))
def test_counts(counts: type) -> None:
    compare_detector(GpuCase(SINGLE, counts=torch.from_numpy(np.empty(0, counts)).dtype), "exit_wave_update")


@pytest.mark.parametrize("task", ["exit_wave_update", "loss_gradient", "evaluate"])
@pytest.mark.parametrize("fidelity", sampled("amplitude", "poisson", "intensity"))
def test_detector(task: str, fidelity: str) -> None:
    for dtype, background in ((SINGLE, 2.0), (torch.complex128, 0.0)):
        given = {"background": background, "fidelity": fidelity, "counts": torch.float32, "seed": 6}
        compare_detector(GpuCase(dtype, (13, 22), 2, **given), task)


@more
@pytest.mark.parametrize("fidelity", ["poisson", "intensity"])
def test_step_lengths_of_many_spans(fidelity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the reference, and of each view the same bits, whatever others there are."""
    monkeypatch.setattr(triton_backend, "TILE", 16)
    monkeypatch.setattr(triton_backend, "SPAN", 2)
    case = GpuCase(SINGLE, (8, 9), 1, background=2.0, fidelity=fidelity, counts=torch.float32, seed=6)
    compare_detector(case, "exit_wave_update")
    waves, found = case.many(), []
    for places in (list(range(case.views)), [case.views - 1], [case.views - 1, 0]):
        chunk, change = some_of(case.chunk, places), waves[places]
        GpuBackend().at_detector(case.model, chunk, change, "exit_wave_update")
        found.append(change[places.index(case.views - 1)])
    assert float(found[0].abs().max()) > 0 and all(torch.equal(other, found[0]) for other in found[1:])


def test_pixels_without_data_stay() -> None:
    check_pixels_without_data(GpuCase(counts=torch.float64))


@pytest.mark.skipif(DEVICE != "cpu", reason="test_triton.py compares reconstructions on a GPU with those on the CPU")
@pytest.mark.parametrize(("engine", "case"), sampled(("rpie", {"subpixel": "none"}), ("lsqml", {"modes": 2})))
def test_engines_end_where_the_twins_do(engine: str, case: dict) -> None:
    toy = make(views=8, window=(16, 20), **case)
    found = []
    for backend in (Backend(), GpuBackend()):
        problem, state = toy.problem(), RunState(toy.start())
        problem.backend = backend
        positions = {"positions": {"gain": 1}} if engine == "lsqml" else {}
        Loop(problem, state, [ENGINES[engine](epochs=1, batch=4, **positions)], seed=7).run()
        found.append(state.estimate)
    for name in ("object", "probe", "positions"):
        assert relative(getattr(found[1], name), getattr(found[0], name)) < 1e-11, "sums in another order"
