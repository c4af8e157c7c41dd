"""Every object model: derivatives, slopes, starts and steps, also of one that is not ptymesh's."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.physics.object_models import OBJECT_MODELS, ObjectModel


class Pearls(ObjectModel):
    """O = (1 + i V) / (1 - i V): V beyond all bounds comes to half a turn."""

    name: ClassVar[str] = "pearls"

    def transmission(self, values: Tensor, absorption: float) -> Tensor:
        turned = torch.complex(torch.ones_like(values), values)
        return turned / turned.conj()

    def derivative(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        return 2j / torch.complex(torch.ones_like(values), -values) ** 2

    def values_of(self, obj: np.ndarray) -> np.ndarray:
        return np.tan(np.angle(obj) / 2)


MODELS = [*OBJECT_MODELS.values(), Pearls]
SHAPE = (2, 3, 4)


def random(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def values(model: ObjectModel, seed: int) -> Tensor:
    return torch.complex(random(seed), random(seed + 100)) if model.is_complex else random(seed)


def absorptions(model: ObjectModel) -> tuple[float, ...]:
    return (0.0, 0.3) if model.has_absorption else (0.0,)


@pytest.mark.parametrize("kind", MODELS)
def test_derivatives_are_finite_differences(kind: type[ObjectModel]) -> None:
    model, step = kind(), 1e-6
    v = values(model, 1)
    for a in absorptions(model):
        obj = model.transmission(v, a)
        assert obj.shape == v.shape and obj.dtype == torch.complex128
        apart = (model.transmission(v + step, a) - model.transmission(v - step, a)) / (2 * step)
        torch.testing.assert_close(model.derivative(v, obj, a), apart, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(model.power(v, obj, a), apart.abs().square(), rtol=1e-7, atol=1e-7)
        x = torch.complex(random(2), random(3))
        along = apart.conj() * x
        slope = model.slope(v, obj, x, a)
        torch.testing.assert_close(slope, along if model.is_complex else along.real, rtol=1e-7, atol=1e-7)
        if model.is_complex:  # holomorphic: its derivative is the same in each direction
            aside = (model.transmission(v + 1j * step, a) - model.transmission(v - 1j * step, a)) / (2j * step)
            torch.testing.assert_close(aside, apart, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", MODELS)
def test_absorption_terms_are_finite_differences(kind: type[ObjectModel]) -> None:
    model, a, step = kind(), 0.3, 1e-6
    v = values(model, 1)
    if not model.has_absorption:
        assert torch.equal(model.transmission(v, a), model.transmission(v, 0.0))
        return
    g = torch.complex(random(2), random(3))
    apart = (model.transmission(v, a + step) - model.transmission(v, a - step)) / (2 * step)
    along, size = model.absorption_terms(v, model.transmission(v, a), g)
    torch.testing.assert_close(along, (apart.conj() * g).real, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(size, apart.abs().square(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", MODELS)
def test_vacuum_is_zero_and_a_start_is_met(kind: type[ObjectModel]) -> None:
    model = kind()
    nothing = torch.zeros_like(values(model, 1))
    for a in absorptions(model):
        vacuum = model.transmission(nothing, a)
        assert torch.equal(vacuum, torch.ones_like(vacuum))
        assert model.vacuum_power(a) == pytest.approx(float(model.power(nothing, vacuum, a)[0, 0, 0]))
    assert not model.values_of(np.ones(SHAPE, np.complex128)).any()
    wanted = 0.1 * values(model, 4)
    found = model.values_of(model.transmission(wanted, 0.0).numpy())
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_values_follow_a_change_to_first_order(kind: type[ObjectModel]) -> None:
    model, step = kind(), 1e-6
    v, dv = values(model, 5), values(model, 6)
    for a in absorptions(model):
        moved = model.followed(v, model.transmission(v + step * dv, a), a)
        torch.testing.assert_close((moved - v) / step, dv, rtol=1e-4, atol=1e-4)
        assert torch.equal(model.followed(v, model.transmission(v, a), a), v)
