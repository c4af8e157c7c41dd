"""What views ask for against the torch reference: steps of their positions and intensities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from references import (
    DEEP,
    DTYPES,
    Case,
    asked_in_a_sweep,
    compare_asked,
    compare_scenes,
    compare_steps,
    compare_weight_steps,
    nothing,
    record_references,
)

from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.physics.backend import Backend, BatchCache
from ptymesh.physics.model import inner


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("slices", [1, 2, 3])
def test_what_views_ask_for(dtype: torch.dtype, window: tuple[int, int], slices: int) -> None:
    """Of positions and intensities, found by a sweep on its way through all slices."""
    case = Case(dtype, window, 3, slices=slices, background=1.0)
    assert case.fused.supports(case.model, case.chunk, "steps")
    compare_asked(case)
    compare_asked(case, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_what_views_ask_for_otherwise(subpixel: str, propagation: str) -> None:
    """Where only the sweep, and what intensities ask for, goes with the kernels."""
    for slices in (1, 2):
        case = Case(torch.complex128, (16, 20), 2, subpixel, propagation=propagation, slices=slices)
        if slices > 1 or subpixel != "bilinear" or propagation != "far_field":
            assert case.fused.supports(case.model, case.chunk, "steps")
            compare_asked(case)


@pytest.mark.sample(37)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
@pytest.mark.parametrize("slices", [1, 2])
def test_what_views_ask_of_the_parts_of_their_beams(
    dtype: torch.dtype, window: tuple[int, int], propagation: str, subpixel: str, slices: int
) -> None:
    """And of positions, where beams have OPR modes."""
    for modes, opr in ((3, 2), (1, 1)) if dtype == torch.complex128 else ((3, 2),):
        case = Case(dtype, window, modes, subpixel, propagation=propagation, opr=opr, slices=slices)
        assert case.fused.supports(case.model, case.chunk, "steps")
        compare_asked(case)
        if subpixel == "fourier":
            compare_asked(case, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


@pytest.mark.parametrize("slices", [1, 2])
def test_a_view_without_light_asks_for_nothing(slices: int) -> None:
    case = Case(torch.complex64, (16, 16), 2, slices=slices)
    case.chunk.weights[2] = 0
    compare_asked(case)
    weights, positions = asked_in_a_sweep(case, case.fused, case.chunk)
    assert not weights[2].any() and not positions[2].any()


@pytest.mark.parametrize("slices", [1, 3])
def test_steps_are_those_of_waves_that_a_sweep_brought_back(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of others they are worked out anew; of these nothing is."""
    case, asked = Case(modes=2, window=(16, 20), slices=slices), record_references(monkeypatch)
    real = CpuBackend.step_probe
    monkeypatch.setattr(CpuBackend, "step_probe", lambda *given: (asked.append("position_step"), real(*given))[1])
    asked_in_a_sweep(case, case.fused, case.chunk)
    assert not asked
    chunk, sums = replace(case.chunk, cache=BatchCache()), nothing(case)
    made = case.fused.forward(case.model, chunk, case.object, case.probe)
    chi, _ = case.fused.sweep(case.model, chunk, made, "exit_wave_update", sums, keep=True, steps=True)
    found = [
        case.fused.position_step(case.model, chunk, case.object, case.probe, case.opr, made, waves)
        for waves in (chi, chi.clone())
    ]
    # through several slices by torch, whose waves it takes
    assert asked[0] == "position_step" and set(asked[1:]) <= {"forward"}
    case.close(*found)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("opr", [0, 2])
def test_steps_where_the_transform_is_not_known(slices: int, opr: int) -> None:
    case = Case(torch.complex64, (22, 26), 2, slices=slices, opr=opr)
    compare_steps(case)
    compare_weight_steps(case)


def test_norms_are_exact_on_whole_pixels_and_close_beside_them() -> None:
    """Of beams before they are shifted; the derivative is that of the shifted one."""
    case = Case(modes=2, window=(16, 20), opr=2)
    case.chunk.weights[:, 1:] *= 0.2
    for by, most in ((0.0, 1e-12), (1.0, 0.5)):
        chunk = replace(case.chunk, fractions=by * case.chunk.fractions, cache=BatchCache())
        made = Backend().forward(case.model, chunk, case.object, case.probe, case.opr)
        norms = Backend().position_derivative_norms(case.model, chunk, made, case.probe, case.opr)
        for axis in (0, 1):
            moved = case.model.position_derivative(case.object, chunk.anchors, chunk.fractions, made, axis)
            off = (norms[:, axis] / inner(moved, moved) - 1).abs()
            assert float(off.max()) < most and (by == 0 or float(off.max()) > 1e-6)
        parts = Backend().mode_norms(case.model, chunk, made, case.probe, case.opr)
        for k, part in enumerate((case.probe, *case.opr[:, None])):
            wave = case.model.exit_change(
                made, case.model.probes(part, chunk.fractions, torch.ones(len(norms), 1)), None
            )
            assert float((parts[:, k] / inner(wave, wave) - 1).abs().max()) < most


def test_whole_positions_need_no_shift() -> None:
    case = Case()
    changes = {"fractions": torch.zeros_like(case.chunk.fractions), "integer_positions": True}
    assert case.forwards(**changes)[1][2].beams.waves.shape[0] == 1
    compare_scenes(case, **changes)
    compare_steps(case, **changes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear"])
def test_position_steps(dtype: torch.dtype, modes: int, subpixel: str) -> None:
    compare_steps(Case(dtype, modes=modes, subpixel=subpixel))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("opr", [0, 2])
def test_position_steps_where_the_image_moves_with_the_probe(
    dtype: torch.dtype, window: tuple[int, int], opr: int
) -> None:
    """In the near field, of any waves and beams."""
    case = Case(dtype, window, 3, propagation="angular_spectrum", opr=opr)
    assert case.fused.supports(case.model, case.chunk, "position_step")
    compare_steps(case)
    if not opr:
        compare_steps(case, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


def test_position_steps_in_the_near_field_are_those_of_what_the_detector_sees() -> None:
    """<d, chi> / <d, d> with d by central differences of the waves on the detector."""
    case = Case(window=(24, 20), modes=2, propagation="angular_spectrum")
    chi, h = case.many(), 1e-6
    _, (fused, chunk, made) = case.forwards()
    steps = fused.position_step(case.model, chunk, case.object, case.probe, case.opr, made, chi)

    def detected(axis: int, by: float) -> torch.Tensor:
        f = chunk.fractions.clone()
        f[:, axis] += by
        return case.model.detect(case.model.forward(*parts(f)).exit, f)

    def parts(f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        windows = case.model.windows(case.object, chunk.anchors, f, case.window)
        return windows, case.model.probes(case.probe, f, chunk.weights)

    seen = case.model.detect(chi, chunk.fractions)
    for axis in (0, 1):
        d = (detected(axis, h) - detected(axis, -h)) / (2 * h)
        torch.testing.assert_close(steps[:, axis], inner(d, seen) / inner(d, d), rtol=1e-7, atol=1e-9)


def test_a_near_field_image_of_nothing_says_nothing_of_its_position() -> None:
    """It stays where it is, whatever the beam does; single precision leaves no more of it than noise."""
    case = Case(torch.complex64, (16, 20), 1, propagation="angular_spectrum")
    case.object[:] = 1
    _, (fused, chunk, made) = case.forwards()
    assert (
        float(fused.position_step(case.model, chunk, case.object, case.probe, case.opr, made, made.exit).abs().max())
        < 0.3
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_weight_steps(dtype: torch.dtype, propagation: str, subpixel: str) -> None:
    """Of any waves, of dark views, too."""
    for window, opr in (((16, 20), 0), ((13, 22), 0), ((16, 20), 1)):
        case = Case(dtype, window, 2, subpixel, propagation=propagation, opr=opr)
        case.chunk.weights[1, 0] = 0
        compare_weight_steps(case)
        if subpixel == "fourier" and not opr:
            compare_weight_steps(case, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)
