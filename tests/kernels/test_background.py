"""What kernels tell a background: the sums that torch makes, in any precision, of any chunks and threads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import DTYPES, Case, nothing, record_references
from torch import Tensor

from ptymesh.engines import Adam
from ptymesh.errors import Diverged
from ptymesh.kernels import VARIABLE
from ptymesh.physics.backend import Backend, BatchCache, Chunk
from ptymesh.physics.background import BackgroundSums
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

#: In single precision a pixel with a thousandth of the mean count is known to so much, of the largest.
TOLERANCE = {torch.complex128: 1e-12, torch.complex64: 2e-5}
FIDELITIES = ("amplitude", "poisson", "intensity")
NAMES = ("views", "rows", "anchors", "fractions", "weights", "counts")


def begun(case: Case) -> BackgroundSums:
    """Before the first view."""
    return BackgroundSums.zeros(case.chunk.background, case.model.fidelity, 3.0, case.views)


def swept(case: Case, backend: Backend, chunk: Chunk, parts: list[slice], steps: bool = False) -> Tensor:
    """The sums (PARTS TOLD, h, w) of a sweep over these parts of a chunk."""
    sums = nothing(case, chunk)
    sums.background, cache = begun(case), BatchCache()
    for part in parts:
        some = replace(chunk, **{name: getattr(chunk, name)[part] for name in NAMES}, cache=cache)
        made = backend.forward(case.model, some, case.object, case.probe, case.opr)
        backend.sweep(case.model, some, made, "loss_gradient", sums, steps, steps)
    backend.finish(sums)
    return sums.background.sums


def close(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Slopes, and darkness."""
    for one, other in zip(BackgroundSums.total(got), BackgroundSums.total(wanted), strict=True):
        assert float((one - other).abs().max()) <= TOLERANCE[dtype] * float(other.abs().max()) > 0


@pytest.mark.sample(29)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
@pytest.mark.parametrize(("slices", "propagation"), [(1, "far_field"), (1, "angular_spectrum"), (3, "far_field")])
def test_sums(dtype: torch.dtype, fidelity: str, subpixel: str, slices: int, propagation: str) -> None:
    """Of a sweep, with steps of positions too, of the detector's pass, and of waves that are there already."""
    for window, modes, b in (((16, 16), 1, 0.0), ((13, 22), 3, 2.0), ((9, 14), 2, 0.5)):
        kind: dict[str, Any] = {"slices": slices, "propagation": propagation, "fidelity": fidelity, "background": b}
        case = Case(dtype, window, modes, subpixel, counts=torch.float32, **kind)
        views, (reference, fused) = [slice(0, 2), slice(2, 5)], case.both
        wanted = swept(case, reference, case.chunk, views)
        for steps in (False, True):
            close(swept(case, fused, case.chunk, views, steps), wanted, dtype)
        found = []
        for backend in case.both:
            sums = nothing(case, case.chunk)
            sums.background = begun(case)
            chunk = replace(case.chunk, cache=BatchCache())
            made = backend.forward(case.model, chunk, case.object, case.probe, case.opr)
            for task in ("loss_gradient", "exit_wave_update"):
                backend.detector(case.model, chunk, made, task, sums.background)  # type: ignore[arg-type]
            backend.at_detector(case.model, chunk, made.exit.clone(), "loss_gradient", sums.background)
            backend.finish(sums)
            found.append(sums.background.sums)
        close(found[1], found[0], dtype)


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_know_neither_chunks_nor_threads(dtype: torch.dtype, subpixel: str) -> None:
    case = Case(dtype, (13, 22), 2, subpixel, background=1.0)
    one = BackgroundSums.total(swept(case, case.fused, case.chunk, [slice(0, 5)]))
    every = [slice(j, j + 1) for j in (3, 0, 4, 2, 1)]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            for parts in (every, [slice(2, 5), slice(0, 2)]):
                assert torch.equal(BackgroundSums.total(swept(case, case.fused, case.chunk, parts)), one)
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_pixels_without_data_say_nothing(fidelity: str) -> None:
    case = Case(window=(13, 22), counts=torch.float64, fidelity=fidelity, background=1.0)
    counts, mask = case.chunk.counts.clone().clamp(min=0), torch.ones(case.window, dtype=torch.bool)
    counts[:, 5, 6], counts[:, 3, 4], mask[7, 8] = -1.0, math.nan, False
    for backend in case.both:
        chunk = replace(case.chunk, counts=counts, mask=mask)
        total = BackgroundSums.total(swept(case, backend, chunk, [slice(0, 5)]))
        silent = (total == 0).all(0)
        assert silent.nonzero().tolist() == [[3, 4], [5, 6], [7, 8]]
        assert bool(total.isfinite().all())


def test_of_views_without_counts_no_more_is_said_than_there_is_room_for() -> None:
    """Nothing is lit then, and nothing divides by it."""
    case = Case(torch.complex64, (16, 16), 1, counts=torch.float32)
    case.object.zero_()
    chunk = replace(case.chunk, counts=torch.zeros_like(case.chunk.counts))
    wanted, got = (BackgroundSums.total(swept(case, backend, chunk, [slice(0, 5)])) for backend in case.both)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)
    assert float(wanted[1].max()) == pytest.approx(5e10, rel=1e-6) and float(wanted[0].max()) == 5.0


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_no_numbers_stay_none(fidelity: str) -> None:
    """Waves that are no numbers are not taken for dark."""
    case = Case(torch.complex64, (16, 16), 1, counts=torch.float32, fidelity=fidelity)
    case.object.fill_(complex(math.nan, math.nan))
    for backend in case.both:
        total = BackgroundSums.total(swept(case, backend, case.chunk, [slice(0, 5)]))
        step = (total[0] / total[1])[case.chunk.mask & (case.chunk.counts >= 0).any(0)]
        assert bool(step.isnan().all())


def test_intensities_beyond_all_bounds_are_cut_off() -> None:
    case = Case(torch.complex64, (16, 16), 1, fidelity="intensity")
    case.object *= 1e9
    limit = float(begun(case).limits[0])
    for backend in case.both:
        total = BackgroundSums.total(swept(case, backend, case.chunk, [slice(0, 5)]))
        assert float(total[0].max()) == 5 * limit


KINDS: dict[str, dict[str, Any]] = {
    "far field": dict(modes=2),
    "not shifted": dict(subpixel="none", fidelity="poisson", noise=True),
    "near field": dict(propagation="angular_spectrum"),
    "slices": dict(slices=2, fidelity="poisson", noise=True),
    "intensity": dict(fidelity="intensity", noise=True),
}


def reconstructed(kind: str, **options: Any) -> RunState:
    """By Adam, which also moves positions where there are fractions."""
    toy = make(views=20, background=2.0, **KINDS[kind])
    state, moving = RunState(toy.start(position_error=0.4)), {"background": {"lr": 0.1}}
    state.estimate.background.fill_(0.5)
    if toy.model.subpixel != "none":
        options["positions"] = {"gain": 1}
    Loop(toy.problem(), state, [Adam(epochs=2, batch=7, fidelity=toy.model.fidelity, unknowns=moving, **options)]).run()
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_twins(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels, of which none hands anything over, and without."""
    with monkeypatch.context() as patch:
        left = record_references(patch)
        fused = reconstructed(kind)
    assert not {"at_detector", "apply_at_detector", "detector", "adjoint", "sweep"} & set(left)
    monkeypatch.setenv(VARIABLE, "torch")
    plain = reconstructed(kind)
    for name in ("object", "probe", "positions", "background"):
        assert relative(getattr(fused.estimate, name), getattr(plain.estimate, name)) <= 1e-10, name
    assert float((fused.estimate.background - 0.5).abs().max()) > 1e-3
    assert fused.history["loss"] == pytest.approx(plain.history["loss"], rel=1e-9)


def test_a_run_whose_background_is_no_number_ends() -> None:
    toy = make(views=12)
    start = toy.start()
    start.background.fill_(math.nan)
    with pytest.raises(Diverged):
        Loop(toy.problem(), RunState(start), [Adam(epochs=2, batch=7, unknowns={"background": True})]).run()
