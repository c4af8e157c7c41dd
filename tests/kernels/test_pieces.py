"""Which entry goes to which kernel, and that what no kernel knows goes to the reference in torch."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest
import torch
from references import AROUND, DEEP, DTYPES, PIECES, Case, add_fidelity, compare_entries

from ptymesh.kernels.capabilities import AT_EXIT, AT_PROBE, Request, capability_for
from ptymesh.kernels.capabilities import PIECES as WITH_PIECES
from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.kernels.fused import FusedBackend
from ptymesh.models.binned_detector import BinnedDetector
from ptymesh.physics.backend import Backend, Operation
from ptymesh.physics.model import Model
from ptymesh.physics.operators import Placed

#: What kernels know, to which a piece is added that they do not: a kernel of each row of the table.
KNOWN: dict[str, dict[str, Any]] = {
    "shifted probes": {},
    "shared probe": {"subpixel": "none"},
    "bilinear": {"subpixel": "bilinear"},
    "variable probes": {"opr": 1},
    "near field": {"propagation": "angular_spectrum"},
    "slices": {"slices": 2},
}
#: Entries of a backend.
ENTRIES = {name for name, value in vars(Backend).items() if hasattr(value, "__wrapped__")}


@pytest.mark.parametrize("kind", KNOWN)
def test_every_entry_is_that_of_the_reference(kind: str) -> None:
    compare_entries(Case(window=(16, 20), **KNOWN[kind]))


@pytest.mark.sample(29)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("kind", KNOWN)
def test_a_piece_that_no_kernel_knows_goes_to_the_reference(
    kind: str, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_fidelity(monkeypatch)
    case = Case(window=(16, 20), **KNOWN[kind])
    case.model = PIECES[piece](case)
    compare_entries(case)


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("fidelity", ["amplitude", "poisson"])
def test_kernels_around_windows_wider_than_patterns(kind: str, fidelity: str) -> None:
    """Patterns of 8 x 10 pixels, of which no kernel knows the transform, and windows of 16 x 20."""
    case = Case(window=(16, 20), fidelity=fidelity, background=0.5, **KNOWN[kind])
    case.model = replace(case.model, detector=(Placed(BinnedDetector(factor=2), (), {}),))
    arrays = {name: getattr(case.chunk, name)[..., ::2, ::2] for name in ("mask", "background", "counts")}
    case.chunk = replace(case.chunk, **{name: array.contiguous() for name, array in arrays.items()})
    assert case.fused.supports(case.model, case.chunk, "apply_at_detector") == (kind != "near field")
    compare_entries(case)


@pytest.mark.sample(19)
@pytest.mark.parametrize("piece", AROUND)
@pytest.mark.parametrize("kind", KNOWN)
def test_kernels_around_operators_give_what_the_reference_gives(kind: str, piece: str) -> None:
    case = Case(window=(16, 20), **KNOWN[kind])
    case.model = AROUND[piece](case)
    compare_entries(case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_around_operators_at_views_on_whole_pixels(dtype: torch.dtype) -> None:
    case = Case(dtype, window=(16, 24))
    case.model = AROUND["copies before a turn"](case)
    case.chunk = replace(case.chunk, fractions=0 * case.chunk.fractions, integer_positions=True)
    compare_entries(case)


@pytest.mark.sample(13)
@pytest.mark.parametrize("window", DEEP)
@pytest.mark.parametrize("kind", ["amplitude", "poisson", "intensity"])
@pytest.mark.parametrize("counts", [torch.uint16, torch.float32])
def test_kernels_around_pieces_of_the_detector(window: tuple[int, int], kind: str, counts: torch.dtype) -> None:
    case = Case(window=window, fidelity=kind, counts=counts, background=0.5)
    case.model = AROUND["pieces of the detector"](case)
    assert case.fused.supports(case.model, case.chunk, "detector")
    compare_entries(case)


@pytest.mark.parametrize("name", ["forward", "detector", "adjoint", "systems", "illumination"])
def test_copies_and_turns_are_left_to_no_reference(name: Operation) -> None:
    case = Case(torch.complex64, window=(16, 24))
    for piece in ("copies", "turn"):
        case.model = AROUND[piece](case)
        # the wave behind a turn goes to the detector as all waves do
        assert case.fused.supports(case.model, case.chunk, name) or (piece, name) == ("turn", "detector")
    assert case.fused.supports(case.model, case.chunk, "apply_at_detector")


def test_pieces_change_what_entries_give() -> None:
    """Where they go to the reference as well, kernels would be wrong."""
    case = Case(window=(16, 20))
    plain = case.model.forward(*parts(case, case.model))
    for name in ("operator at the probe", "operator at the exit", "positions", "probe"):
        other = PIECES[name](case)
        assert not torch.allclose(plain.exit, other.forward(*parts(case, other)).exit), name
    mirrored = PIECES["detector"](case)
    waves = case.many()
    assert not torch.allclose(*(m.detect(waves, case.chunk.fractions) for m in (case.model, mirrored)))


def parts(case: Case, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    chunk = case.chunk
    windows = model.windows(case.object, chunk.anchors, chunk.fractions, case.window)
    return windows, model.probes(case.probe, chunk.fractions, chunk.weights)


@pytest.mark.parametrize("piece", PIECES)
def test_no_capability_names_such_a_piece(piece: str) -> None:
    backend = CpuBackend(torch.complex128)
    compares = {"at_detector", "apply_at_detector", "detector", "sweep", "steps", "recompute_waves"}
    #: Up to an operator and on from there; what an operator at the exit, of which nothing is known, does to products,
    #: the reference alone finds out.
    around = {"at_detector", "apply_at_detector", "illuminate", "forward", "adjoint", "illumination"}
    before_exit = around | {"detector", "systems"}
    for kind in KNOWN.values():
        case = Case(window=(16, 20), **kind)
        model = PIECES[piece](case)
        kept = {one for one, _ in backend.table if backend.supports(model, case.chunk, one)}
        if piece.startswith("operator"):
            assert kept <= (before_exit if piece == "operator at the probe" else around)
        elif piece == "fidelity":
            assert not kept & compares
        elif piece == "response":
            assert kept & compares <= compares - {"at_detector"}
        elif piece == "saturation":
            assert not kept & compares
        else:
            assert not kept


def backends() -> list[type[FusedBackend]]:
    """Those with kernels."""
    if find_spec("triton") is None:
        return [CpuBackend]
    from ptymesh.kernels.gpu.backend import GpuBackend

    return [CpuBackend, GpuBackend]


@pytest.mark.parametrize("kind", backends())
def test_no_backend_overrides_an_entry(kind: type[FusedBackend]) -> None:
    assert len(ENTRIES) == 13
    for one in kind.__mro__[: kind.__mro__.index(Backend)]:
        assert not ENTRIES & set(vars(one)), one


@pytest.mark.parametrize("kind", backends())
def test_tables_name_entries(kind: type[FusedBackend]) -> None:
    backend = kind(torch.complex128) if kind is CpuBackend else kind()  # type: ignore[call-arg]
    assert {operation for operation, _ in backend.table} <= ENTRIES | {"steps"}


def test_every_kernel_of_the_table_is_chosen_by_some_request() -> None:
    table, chosen = CpuBackend(torch.complex64).table, set()
    operations: dict[Operation, Any] = {operation: None for operation, _ in table}
    for operation in operations:
        known = tuple(capability for one, capability in table if one == operation)
        for several, near, varied, whole, transform in (
            tuple(bool(number >> bit & 1) for bit in range(5)) for number in range(32)
        ):
            for subpixel, operators in product(("fourier", "bilinear", "none"), (frozenset[str](), AT_PROBE, AT_EXIT)):
                views = subpixel, varied, whole, transform
                for pieces in (frozenset[str](), WITH_PIECES):
                    request = Request(several, near, *views, operators, pieces, "poisson", Model)
                    chosen.add((operation, capability_for(operation, request, known)))
    assert set(table) <= chosen


def test_a_request_has_all_that_a_model_may_ask() -> None:
    """A field that is added to the model must be told to the kernels, or be nothing that they would miss."""
    missed_by_none = {"slice_rate", "slice_spacing_m", "tilt_rates", "tilt_rad"}  # of the transfer function and gaps
    told = {"subpixel", "fidelity", "kernel", "slice_kernel", "operators", "detector", "energies", "mirror"}
    assert {field.name for field in fields(Model)} == missed_by_none | told
    model = Case(window=(16, 20)).model
    assert Request.of(replace(model, fidelity="poisson"), False, False, True).fidelity == "poisson"
