"""An object model: one value for each pixel of each slice, real or complex, from which the transmission follows.

V       (L, H, W) values, 0 for vacuum
a       absorption, one number for the whole object, of models that have one
O       (L, H, W) complex, the transmission, which the forward model is made of
D       dO/dV, complex

The slope of a loss of slope g = dL/dRe O + i dL/dIm O is dL/dV = Re(conj(D) g), and the least-squares change of V for
a wanted change X of O is

    dV = Re(conj(D) X) / |D|^2

Of complex values, of which O is a holomorphic function, both are complex: without the Re.

A model that says O, D and which V stands for a given O is moved by every engine that moves values of an object
(engines/object_values.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.physics.elementwise import times
from ptymesh.registry import Registry, subclass_of

#: Name of the model without values: the transmission itself is what engines move.
TRANSMISSION = "transmission"


class ObjectModel:
    """A map from the values of an object to its transmission.

    A subclass defines `transmission`, `derivative` and `values_of`. It has no options, and is registered by its `name`.
    """

    #: The object's `kind` in a recipe.
    name: ClassVar[str]
    #: True if transmissions depend on the absorption of the object, which then may move with its values.
    has_absorption: ClassVar[bool] = False
    #: True if values are phases in rad, without wraps: results keep them as the potential.
    is_phase: ClassVar[bool] = False
    #: True if values are complex, two real numbers for each pixel, and O is a holomorphic function of them. Of values
    #: that are phases, the real part is the phase.
    is_complex: ClassVar[bool] = False

    def transmission(self, values: Tensor, absorption: float) -> Tensor:
        """Return O, complex of the values' precision and shape; 1 where a value is 0.

        Args:
            values: V, (..., H, W) real, or complex of a model that says so, as everywhere below.
            absorption: a; 0 of a model that has none.
        """
        raise NotImplementedError

    def derivative(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        """Return D = dO/dV of each pixel, complex of the same shape.

        Args:
            values: V, (..., H, W) real.
            obj: O of these values.
            absorption: a.
        """
        raise NotImplementedError

    def values_of(self, obj: np.ndarray) -> np.ndarray:
        """Return the values from which a reconstruction starts that is given a transmission; 0 where that is 1.

        Args:
            obj: O, (L, H, W) complex.

        Returns:
            V, (L, H, W) float64, or complex128 of a model with complex values.
        """
        raise NotImplementedError

    def slope(self, values: Tensor, obj: Tensor, change: Tensor, absorption: float) -> Tensor:
        """Return Re(conj(D) x): the slope by V from that by O, or the part of a change that V makes.

        Of complex values it is conj(D) x, complex.

        Args:
            values: V, (..., H, W) real.
            obj: O of these values.
            change: x of the same shape, complex.
            absorption: a.
        """
        along = self.derivative(values, obj, absorption)
        if self.is_complex:
            return times(along.conj().resolve_conj(), change)
        return along.real * change.real + along.imag * change.imag

    def power(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        """Return |D|^2, real.

        Args:
            values: V, (..., H, W) real.
            obj: O of these values.
            absorption: a.
        """
        return torch.view_as_real(self.derivative(values, obj, absorption)).square().sum(-1)

    def vacuum_power(self, absorption: float) -> float:
        """Return |D|^2 in vacuum, by which steps along slopes are scaled."""
        nothing = torch.zeros(1, dtype=torch.complex128 if self.is_complex else torch.float64)
        return float(self.power(nothing, self.transmission(nothing, absorption), absorption))

    def absorption_terms(self, values: Tensor, obj: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return Re(conj(dO/da) g) and |dO/da|^2 of each pixel, of a model that has an absorption.

        Args:
            values: V, (..., H, W) real.
            obj: O of these values.
            slope: g, the slope by O.
        """
        raise NotImplementedError

    def followed(self, values: Tensor, changed: Tensor, absorption: float) -> Tensor:
        """Return the values after the least-squares step towards a transmission that has been changed.

        Where nothing has changed they stay as they are, to the last bit.

        Args:
            values: V before the change, (..., H, W) real.
            changed: the transmission after the change, complex.
            absorption: a.
        """
        before = self.transmission(values, absorption)
        power = self.power(values, before, absorption)
        slope = self.slope(values, before, changed - before, absorption)
        step = torch.complex(slope.real / power, slope.imag / power) if self.is_complex else slope / power
        return values + torch.where(power > 0, step, 0.0)


OBJECT_MODELS: Registry[type[ObjectModel]] = Registry(
    "kind of object",
    "ptymesh.object_models",
    subclass_of(ObjectModel),
    "make it a subclass of ptymesh.physics.object_models.ObjectModel",
    also=(TRANSMISSION,),
)


def object_model_of(name: str) -> ObjectModel:
    """Return the object model of this name.

    Raises:
        ValueError: there is none.
        BadInput: that of a package cannot be used.
    """
    return OBJECT_MODELS[name]() if name in OBJECT_MODELS else _load_from_package(name)


@lru_cache
def _load_from_package(name: str) -> ObjectModel:
    """Return the object model that an installed package offers; looked for once, as every batch asks."""
    return OBJECT_MODELS[name]()
