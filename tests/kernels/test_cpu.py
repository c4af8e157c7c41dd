"""Fused passes against the torch reference, on random inputs: sizes, modes, precisions, dtypes of counts, positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from references import (
    DEEP,
    DTYPES,
    Case,
    check_pixels_without_data,
    compare_detector,
    compare_gaps,
    compare_in_one_go,
    compare_scenes,
    compare_steps,
    compare_sweeps,
    compare_systems,
    nothing,
    record_references,
    summed,
    swept,
)

from ptymesh.distributed.layouts.boxes import Boxes
from ptymesh.kernels.cpu import arguments
from ptymesh.kernels.cpu import backend as cpu
from ptymesh.kernels.cpu import sums as cpu_sums
from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.physics.backend import Backend, BatchCache, reference_of
from ptymesh.physics.blocks import FieldView, blocked
from ptymesh.physics.model import reach_of

WINDOWS = [(16, 16), (13, 22), (9, 7)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_scene_and_adjoint(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> None:
    compare_scenes(Case(dtype, window, modes, subpixel))


@pytest.mark.sample(31)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modes", [1, 3, 4])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_sweep(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> None:
    for task, fidelity in (("exit_wave_update", "amplitude"), ("loss_gradient", "poisson")):
        compare_sweeps(Case(dtype, window, modes, subpixel, fidelity=fidelity, background=1.0), task)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
def test_add_quotient(dtype: torch.dtype, window: tuple[int, int]) -> None:
    given = [torch.randn(3, *window, dtype=dtype) for _ in range(2)]
    weight = torch.rand(window, dtype=dtype.to_real())
    # as kernels take it, of another precision, and one for all pixels
    for over in (weight, weight.double(), weight[:1, :1].expand(window), weight[0]):
        wanted, got = given[0].clone(), given[0].clone()
        Backend().add_quotient(wanted, given[1], over, 0.4, 0.7)
        CpuBackend(dtype).add_quotient(got, given[1], over, 0.4, 0.7)
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_probe_that_saw_nothing_stays(dtype: torch.dtype) -> None:
    start, nothing_seen = torch.randn(2, 13, 10, dtype=dtype), torch.zeros(2, 13, 10, dtype=dtype)
    for backend in (Backend(), CpuBackend(dtype)):
        for blend in (1.0, 0.1, 1e-6):
            backend.add_quotient(probe := start.clone(), nothing_seen, nothing_seen[0].real.contiguous(), blend, 2.0)
            assert torch.equal(probe, start)


def test_what_is_gathered_is_added_to_what_the_probe_has() -> None:
    case = Case(subpixel="fourier", modes=2)
    _, (fused, chunk, intermediates) = case.forwards()
    waves, found = case.many(), []
    for start in (0.0, 1.0):
        sums = nothing(case)
        assert sums.probe is not None
        sums.probe += start
        fused.adjoint(case.model, chunk, intermediates, waves, sums)
        fused.finish(sums)
        found.append(sums.probe)
    case.close(found[1] - 1, found[0])


def test_sweep_of_whole_positions() -> None:
    case = Case(modes=2)
    compare_sweeps(case, "exit_wave_update", fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_a_chunk_is_swept_strip_by_strip(subpixel: str, views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = 16 * 24 * 28
    monkeypatch.setattr(arguments, "PANEL_BYTES", views * (wave if subpixel == "fourier" else 2 * wave))
    case, calls = Case(window=(24, 28), modes=2, subpixel=subpixel), []
    detector = cpu.compiled_detector.detector

    def counting(*arguments: Any) -> None:
        calls.append(len(arguments[9]))
        detector(*arguments)

    monkeypatch.setattr(cpu.compiled_detector, "detector", counting)
    compare_sweeps(case, "exit_wave_update")
    assert max(calls) == views < case.views and sum(calls) % case.views == 0


def test_waves_of_a_chunk_count_where_it_is_not_swept_strip_by_strip() -> None:
    case = Case(torch.complex64, (16, 16), modes=3)
    waves = case.probe.numel() * case.probe.element_size()
    for subpixel, found in (("none", 0), ("fourier", 0), ("bilinear", waves)):
        assert case.fused.sweep_bytes(replace(case.model, subpixel=subpixel), case.probe, False, False) == found
    sliced = Case(torch.complex64, (16, 16), modes=3, subpixel="bilinear", slices=2)
    assert sliced.fused.sweep_bytes(sliced.model, sliced.probe, False, False) == 0


def test_waves_of_a_chunk_count_where_steps_are_made_of_them() -> None:
    """In the near field, and where nothing is shifted, or interpolated."""
    far, near = (
        Case(torch.complex64, (16, 16), modes=3, propagation=name) for name in ("far_field", "angular_spectrum")
    )
    waves = far.probe.numel() * far.probe.element_size()

    def found(case: Case, subpixel: str, steps: bool, whole: bool) -> int:
        return case.fused.sweep_bytes(replace(case.model, subpixel=subpixel), case.probe, steps, whole)  # type: ignore[arg-type]

    assert found(far, "fourier", True, False) == 0
    assert found(far, "fourier", True, True) == found(far, "none", True, True) == waves
    assert found(near, "fourier", False, False) == 0 and found(near, "fourier", True, False) == waves


#: What a case has that kernels may not know; 17 has no transform.
CASES: list[dict[str, Any]] = [
    {},
    {"subpixel": "bilinear"},
    {"subpixel": "none"},
    {"opr": 1},
    {"window": (17, 22)},
    {"propagation": "angular_spectrum"},
    {"propagation": "angular_spectrum", "window": (16, 20)},
    {"propagation": "angular_spectrum", "window": (16, 20), "opr": 1},
    {"propagation": "angular_spectrum", "window": (16, 20), "subpixel": "bilinear"},
    {"propagation": "angular_spectrum", "window": (16, 20), "slices": 2},
    {"slices": 2},
    {"slices": 2, "subpixel": "none"},
    {"slices": 2, "opr": 1},
    {"slices": 2, "window": (17, 22)},
]


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: "-".join(map(str, kind.values())) or "plain")
def test_what_is_supported_is_not_handed_over(kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And all else is, to the reference."""
    case, fused = Case(**kind), Case(**kind).fused
    chi, sums, chunk = case.many(), nothing(case), replace(case.chunk, cache=BatchCache())
    made = fused.forward(case.model, chunk, case.object, case.probe, case.opr)
    if fused.supports(case.model, chunk, "steps"):
        chi = fused.sweep(case.model, chunk, made, "exit_wave_update", sums, keep=True, steps=True)[0]
    given: dict[str, tuple] = {
        "forward": (case.object, case.probe, case.opr),
        "at_detector": (chi.clone(), "evaluate"),
        "apply_at_detector": (chi, "evaluate"),
        "detector": (made, "evaluate"),
        "adjoint": (made, chi, sums),
        "sweep": (made, "exit_wave_update", sums),
        "recompute_waves": (made, "exit_wave_update"),
        "position_step": (case.object, case.probe, case.opr, made, chi),
        "weight_step": (case.probe, case.opr, made, chi),
        "systems": (made, case.object, case.probe, chi),
    }
    if case.model.slice_kernel is not None:
        given["gap_products"] = (made, case.model.gap_rates("tilt"), chi)
    if case.model.subpixel == "none":  # positions have no derivative
        del given["position_step"]
    for name, words in given.items():
        supported = fused.supports(case.model, chunk, name)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            handed_over = record_references(patch)
            getattr(fused, name)(case.model, chunk, *words)
        assert (name in handed_over) != supported, name


def test_object_or_probe_alone() -> None:
    case = Case()
    waves = case.many()
    _, (fused, chunk, intermediates) = case.forwards()
    whole = summed(case, fused, chunk, intermediates, waves, twice=False)
    for left_out in ("object", "probe"):
        sums = nothing(case)
        setattr(sums, left_out, None)
        fused.adjoint(case.model, chunk, intermediates, waves, sums)
        fused.finish(sums)
        for name in {"object", "probe"} - {left_out}:
            assert torch.equal(getattr(sums, name), getattr(whole, name))
        if left_out == "probe":
            assert float(sums.probe_weight.max()) == 0


@pytest.mark.sample(23)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_variable_probes(
    dtype: torch.dtype, window: tuple[int, int], slices: int, propagation: str, subpixel: str
) -> None:
    """OPR modes: of one probe mode and of several, through slices, to either field."""
    tasks = [("exit_wave_update", "amplitude", 3, 2), ("loss_gradient", "poisson", 1, 1)]
    # without a background, slopes of Poisson's likelihood are too steep for single precision
    for task, fidelity, modes, opr in tasks if dtype == torch.complex128 else tasks[:1]:
        kind = {"propagation": propagation, "slices": slices, "fidelity": fidelity, "opr": opr}
        case = Case(dtype, window, modes, subpixel, **kind)  # type: ignore[arg-type]
        fused = slices > 1 or subpixel != "bilinear" or propagation != "far_field"
        assert case.fused.supports(case.model, case.chunk, "sweep") == fused
        compare_sweeps(case, task)
        compare_in_one_go(case, task)
        if dtype == torch.complex128:
            compare_scenes(case)
            compare_systems(case)
        if slices > 1:
            compare_gaps(case)
    if subpixel == "fourier":
        compare_sweeps(case, task, fractions=torch.zeros_like(case.chunk.fractions), integer_positions=True)


def test_near_field() -> None:
    case = Case(propagation="angular_spectrum", modes=2)
    compare_scenes(case)
    compare_steps(case)
    compare_detector(case, "exit_wave_update")


@pytest.mark.sample(19)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_waves_carried_on(window: tuple[int, int], slices: int, propagation: str, subpixel: str) -> None:
    """From slice to slice, to a near field, or both: gradients, the detector's pass, systems of steps."""
    for task, fidelity, modes in (("exit_wave_update", "amplitude", 3), ("loss_gradient", "poisson", 1)):
        kind = {"propagation": propagation, "slices": slices, "fidelity": fidelity, "background": 1.0}
        case = Case(torch.complex128, window, modes, subpixel, **kind)  # type: ignore[arg-type]
        if slices > 1:
            assert all(case.fused.supports(case.model, case.chunk, one) for one in ("forward", "sweep", "systems"))
            compare_gaps(case)
        compare_sweeps(case, task)
        compare_scenes(case)
        compare_systems(case)
        compare_in_one_go(case, task)
    if subpixel == "fourier":
        changes = {"fractions": torch.zeros_like(case.chunk.fractions), "integer_positions": True}
        compare_sweeps(case, "loss_gradient", **changes)
        compare_in_one_go(case, "loss_gradient", **changes)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("propagation", ["far_field", "angular_spectrum"])
def test_waves_carried_on_in_single_precision(slices: int, propagation: str) -> None:
    for subpixel in ("fourier", "none"):
        case = Case(torch.complex64, (16, 16), 3, subpixel, propagation=propagation, slices=slices)
        compare_sweeps(case, "exit_wave_update")
        compare_systems(case)
        if slices > 1:
            compare_gaps(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_systems(dtype: torch.dtype, modes: int, subpixel: str) -> None:
    compare_systems(Case(dtype, modes=modes, subpixel=subpixel))


@pytest.mark.parametrize("counts", [np.uint8, np.uint16, np.uint32, np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts(counts: type, dtype: torch.dtype) -> None:
    compare_detector(Case(dtype, counts=torch.from_numpy(np.empty(0, counts)).dtype), "exit_wave_update")


@pytest.mark.parametrize("task", ["exit_wave_update", "loss_gradient", "evaluate"])
@pytest.mark.parametrize("fidelity", ["amplitude", "poisson", "intensity"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("background", [0.0, 2.0])
def test_detector(task: str, fidelity: str, dtype: torch.dtype, background: float) -> None:
    for window, modes in zip(WINDOWS, (1, 2, 3), strict=True):
        case = Case(
            dtype, window, modes, background=background, fidelity=fidelity, counts=torch.float32, seed=modes + 4
        )
        compare_detector(case, task)


def test_pixels_without_data_stay() -> None:
    check_pixels_without_data(Case(counts=torch.float64))


@pytest.mark.parametrize("bands", [1, 3, 8])
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_sums_on_cleared_blocks_are_the_same_whatever_was_there(
    subpixel: str, bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cpu, cpu_sums):
        monkeypatch.setattr(module, "bands_of_rows", lambda: bands)
    case = Case(torch.complex64, subpixel=subpixel)
    case.object = case.waves(1, 64 * (bands + 1), 96)
    backend, found = case.fused, []
    boxes = Boxes.of(case.chunk.anchors, case.window, case.object.shape, reach_of(subpixel))
    rows, columns = map(torch.from_numpy, boxes.cover(np.arange(case.views)).nonzero())
    for before in (0.0, 7.0):
        sums = nothing(case)
        assert sums.object is not None and sums.object_weight is not None
        sums.object += before
        sums.object_weight += before
        fields = torch.full_like(case.object, before), torch.full_like(case.object.real, before)
        backend.clear(sums.object, sums.object_weight, rows, columns)
        for swept_by in (backend.sweep, partial(reference_of(Backend.sweep), backend)):
            chunk = replace(case.chunk, cache=BatchCache())
            intermediates = backend.forward(case.model, chunk, case.object, case.probe)
            swept_by(case.model, chunk, intermediates, "exit_wave_update", sums)
        backend.narrow((sums.object, sums.object_weight), rows, columns, fields)
        leaf = FieldView(rows, columns, array=fields[1])
        assert float(backend.largest(leaf)) == float(blocked(fields[1])[0][rows, columns].max())
        found.append([blocked(field)[:, rows, columns] for field in (sums.object, sums.object_weight, *fields)])
        assert torch.equal(found[-1][2], found[-1][0].to(case.dtype)), "in the precision of the object"
        outside = torch.ones(2 * (bands + 1), 3, dtype=torch.bool)
        outside[rows, columns] = False
        for field in (sums.object_weight, fields[1]):
            assert bool((blocked(field)[0][outside] == before).all()), "others stay"
    for zero, seven in zip(*found, strict=True):
        assert float(zero.abs().max()) > 0 and torch.equal(zero, seven)


@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
def test_threads_and_bands_change_no_bit(subpixel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found, before = Case(torch.complex64, (20, 12), 2, subpixel), [], torch.get_num_threads()
    for threads, bands in ((1, 1), (2, 3), (2, 8)):
        monkeypatch.setattr(cpu_sums, "bands_of_rows", lambda bands=bands: bands)
        torch.set_num_threads(threads)
        try:
            sums = swept(case, case.fused, replace(case.chunk, cache=BatchCache()), "exit_wave_update", keep=False)[0]
        finally:
            torch.set_num_threads(before)
        found.append((sums.object, sums.object_weight))
    for pair in found[1:]:
        assert all(map(torch.equal, pair, found[0]))


@pytest.mark.parametrize("window", [(16, 32), (13, 10)])  # with a transform of the kernels' own, and without
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
@pytest.mark.parametrize(("dtype", "parts"), [(torch.complex64, 1), (torch.complex64, 2), (torch.complex128, 2)])
@pytest.mark.parametrize("way", ["sweep", "adjoint"])
def test_sums_do_not_depend_on_order_or_chunks(
    dtype: torch.dtype, parts: int, way: str, subpixel: str, window: tuple[int, int]
) -> None:
    case, found = Case(dtype, window, 2, subpixel), []
    waves = case.many()
    backend = case.fused
    names = ("views", "rows", "anchors", "fractions", "weights", "counts")
    for order in ([[0, 1, 2, 3, 4]], [[4], [1, 0], [3, 2]], [[2, 4, 3], [0], [1]]):
        sums = nothing(case, parts=parts)
        for views in order:
            some = replace(case.chunk, **{name: getattr(case.chunk, name)[views] for name in names}, cache=BatchCache())
            intermediates = backend.forward(case.model, some, case.object, case.probe)
            if way == "sweep":
                backend.sweep(case.model, some, intermediates, "exit_wave_update", sums)
            else:
                backend.adjoint(case.model, some, intermediates, waves[views], sums)
        backend.finish(sums)
        found.append(sums)
    for name in ("object", "object_weight", "probe", "probe_weight", "reached"):
        one, *others = (getattr(sums, name) for sums in found)
        assert bool(one.any()) and all(torch.equal(one, other) for other in others), name


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_threads_do_not_change_a_bit(subpixel: str) -> None:
    case = Case(torch.complex64, modes=3, subpixel=subpixel)
    waves, before = case.many(), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            (_, (fused, chunk, intermediates)) = case.forwards()
            exit_waves, sums = intermediates.exit, summed(case, fused, chunk, intermediates, waves)
            found.append(
                (
                    exit_waves,
                    sums,
                    *swept(case, fused, replace(chunk, cache=BatchCache()), "exit_wave_update", keep=True)[:2],
                )
            )
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    one, two = found
    assert torch.equal(one[0], two[0]) and torch.equal(one[3], two[3])
    for name in ("object", "object_weight", "probe", "probe_weight"):
        for place in (1, 2):
            assert torch.equal(getattr(one[place], name), getattr(two[place], name))


#: Kinds of waves that are carried on.
CARRIED: list[dict[str, Any]] = [
    {"slices": 3},
    {"slices": 3, "subpixel": "none"},
    {"slices": 2, "subpixel": "bilinear"},
    {"propagation": "angular_spectrum"},
]


@pytest.mark.parametrize("kind", CARRIED, ids=lambda kind: "-".join(map(str, kind.values())))
def test_neither_threads_nor_company_change_a_bit_of_waves_carried_on(kind: dict[str, Any]) -> None:
    case, before, found = Case(torch.complex64, (50, 35), 2, **kind), torch.get_num_threads(), []
    assert case.fused.supports(case.model, case.chunk, "sweep")
    d_object, d_probe = case.waves(*case.object.shape), case.waves(*case.probe.shape)
    rates = None if case.model.slice_kernel is None else case.model.gap_rates("tilt")
    names = ("views", "rows", "anchors", "fractions", "weights", "counts")
    try:
        for threads, order in ((1, [[0, 1, 2, 3, 4]]), (2, [[0, 1, 2, 3, 4]]), (2, [[4], [1, 0], [3, 2]])):
            torch.set_num_threads(threads)
            backend, sums = case.fused, nothing(case)
            chi, systems = torch.empty_like(case.many()), torch.empty(case.views, 5, dtype=torch.float64)
            weights, positions = torch.empty(case.views, 1), torch.empty(case.views, 2, dtype=torch.float64)
            gaps = torch.ones(case.views, 2, 2, dtype=torch.float64)
            for views in order:
                some = replace(
                    case.chunk, **{name: getattr(case.chunk, name)[views] for name in names}, cache=BatchCache()
                )
                made = backend.forward(case.model, some, case.object, case.probe)
                back = backend.sweep(case.model, some, made, "exit_wave_update", sums, keep=True, steps=True)[0]
                weights[views] = backend.weight_step(case.model, some, case.probe, case.opr, made, back)
                if case.model.subpixel == "fourier":
                    positions[views] = backend.position_step(
                        case.model, some, case.object, case.probe, case.opr, made, back
                    )
                chi[views] = back
                again = backend.detector(case.model, some, made, "exit_wave_update")[0]
                assert torch.equal(again, chi[views]), "without sums it is the same"
                systems[views] = backend.systems(case.model, some, made, d_object, d_probe, chi[views])
                if rates is not None:
                    gaps[views] = backend.gap_products(case.model, some, made, rates, chi[views])
            backend.finish(sums)
            asked = (weights, positions) if case.model.subpixel == "fourier" else (weights,)
            found.append(
                (chi, systems, gaps, *asked, *(getattr(sums, name) for name in ("object", "object_weight", "probe")))
            )
    finally:
        torch.set_num_threads(before)
    for one, *others in zip(*found, strict=True):
        assert bool(one.any()) and all(torch.equal(one, other) for other in others)
