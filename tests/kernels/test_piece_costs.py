"""What a log says of pieces that kernels do not compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from references import AROUND, PIECES, Case

import ptymesh as pm
from ptymesh.kernels.piece_costs import BETWEEN_KERNELS, BETWEEN_SLICES, WITHOUT_KERNELS, costs_of_pieces
from ptymesh.physics.backend import Backend
from ptymesh.physics.model import Model
from ptymesh.simulate import simulate

SCREEN = PIECES["operator at the probe"]


@pytest.mark.parametrize(
    ("given", "make", "said"),
    [
        ({}, SCREEN, [BETWEEN_KERNELS]),
        ({}, PIECES["response"], [BETWEEN_KERNELS]),
        ({}, PIECES["saturation"], [WITHOUT_KERNELS]),
        ({}, AROUND["copies"], []),
        ({}, AROUND["copies before a screen"], [BETWEEN_KERNELS]),
        ({"slices": 2}, SCREEN, [BETWEEN_SLICES]),
        ({"propagation": "angular_spectrum"}, SCREEN, [WITHOUT_KERNELS]),
        ({"propagation": "angular_spectrum"}, PIECES["response"], [BETWEEN_KERNELS]),
    ],
)
def test_a_piece_that_no_kernel_computes_is_named_with_its_cost(
    given: dict[str, object], make: Callable[[Case], Model], said: list[str]
) -> None:
    case = Case(window=(16, 20), **given)  # type: ignore[arg-type]
    plain, model = case.model, make(case)
    costs = costs_of_pieces(case.fused, model, case.window)
    assert [cost.split(" takes ")[1].split(" times")[0] for cost in costs] == said
    assert costs_of_pieces(case.fused, plain, case.window) == costs_of_pieces(Backend(), model, case.window) == []


def test_a_model_that_has_no_kernels_at_all_is_not_put_down_to_a_piece() -> None:
    case = Case(torch.complex64, window=(11, 13))
    assert not case.fused.supports(case.model, case.chunk, "sweep")
    case.model = PIECES["positions"](case)
    assert costs_of_pieces(case.fused, SCREEN(case), case.window) == []


def test_a_reconstruction_has_it_among_its_findings() -> None:
    changing = {"changing_object": {"start": {"object_change": 0.1}}}
    made = simulate(views=9, window=32, optics={**changing, "fly_scan": {"path": [6e-8, 4e-8], "points": 2}})
    recon = pm.Reconstruction(made.measurement, optics=made.truth.options.optics)
    (said,) = [one for one in recon.findings if "torch" in one]
    assert said.startswith("optics.changing_object is computed by torch") and BETWEEN_KERNELS in said
