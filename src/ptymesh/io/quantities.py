"""Numbers of HDF5 files with their units: an attribute is honoured; a unit that is missing and matters is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ptymesh import constants
from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.hdf5.reading import Hdf5File, attribute, dataset_of, item_of, read_dataset, text_of
from ptymesh.io.options import Unit
from ptymesh.io.prepare.positions import METRES
from ptymesh.io.units import ENERGY_J, LENGTH_M, normalised

#: Largest number of values of a dataset of which the first is taken, such as one for each view.
MOST_VALUES = 1 << 24
#: Names of attributes that may say a unit.
UNIT_ATTRIBUTES = ("units", "unit")


@dataclass(frozen=True)
class StoredQuantity:
    """A kind of quantity of a file.

    Attributes:
        units: each unit's size in the recipe's own.
        recipe_unit: the recipe's unit.
        is_plain: whether a value without a unit can only be meant in the recipe's own.
    """

    units: Mapping[str, float]
    recipe_unit: str
    is_plain: Callable[[float], bool]


#: An energy below 1000 may be meant in keV; a distance of 100 m in mm, a pixel of 1 mm in um, and so on.
ENERGY = StoredQuantity(
    {unit: joule / constants.e for unit, joule in ENERGY_J.items()}, "eV", lambda value: value >= 1e3
)
DISTANCE = StoredQuantity(LENGTH_M, "m", lambda value: 1e-3 <= value <= 50)
PIXEL = StoredQuantity(LENGTH_M, "m", lambda value: value <= 1e-3)
WAVELENGTH = StoredQuantity(LENGTH_M, "m", lambda value: value <= 1e-7)


def unit_of(file: Hdf5File, name: str) -> str | None:
    """Return the unit that a dataset's attribute says, None where it says none."""
    data = dataset_of(file, name)
    for key in UNIT_ATTRIBUTES:
        text = text_of(attribute(data, key), 60)
        if text:
            return text
    return None


def read_numbers(file: Hdf5File, name: str, quantity: StoredQuantity, remedy: str) -> np.ndarray:
    """Return the values of a dataset in the recipe's unit, (n,) float64.

    Args:
        file: open.
        name: of the dataset.
        quantity: what its values are.
        remedy: what to set instead, such as "data.energy_eV".

    Raises:
        BadInput: It has no values, its unit is of another kind, or is missing where that matters.
    """
    values = read_dataset(file, name, MOST_VALUES, "iuf").reshape(-1).astype(np.float64)
    subject = f"{name} in {file.filename}"
    if not len(values):
        raise BadInput(f"{subject} is empty; set {remedy}.")
    unit = unit_of(file, name)
    if unit is not None:
        return values * factor(unit, quantity, subject, remedy)
    ask_for_unit(float(values[0]), quantity, subject, remedy)
    return values


def factor(unit: str, quantity: StoredQuantity, subject: str, remedy: str) -> float:
    """Return the size of a unit in the recipe's.

    Args:
        unit: as the file says it.
        quantity: knows the units.
        subject: words for the number.
        remedy: key of the recipe that says it instead.

    Raises:
        BadInput: the unit is not known.
    """
    unit_size = quantity.units.get(normalised(unit))
    if unit_size is None:
        raise BadInput(f"{subject} is in {unit!r}; known are {', '.join(quantity.units)}: set {remedy}.")
    return unit_size


def ask_for_unit(value: float, quantity: StoredQuantity, subject: str, remedy: str) -> None:
    """Raise BadInput if a value without a unit may be meant in another than the recipe's.

    Args:
        value: as the file says it.
        quantity: knows usual values.
        subject: words for the number.
        remedy: key of the recipe that says it instead.
    """
    if value != 0 and not quantity.is_plain(value):
        raise BadInput(
            f"{subject} is {value:g} and says no unit; in {quantity.recipe_unit} that is unlikely: set {remedy}, in "
            f"{quantity.recipe_unit}."
        )


def read_number(
    file: Hdf5File, names: tuple[str, ...], quantity: StoredQuantity, replaced: Any, remedy: str
) -> tuple[float | None, str]:
    """Return the first number that there is of these datasets, None for none, and for zero; and which it was.

    Args:
        file: open.
        names: datasets, looked for in this order.
        quantity: what they hold.
        replaced: what the recipe says instead; unless it is None, nothing is looked at.
        remedy: the key that says it.

    Raises:
        BadInput: As `read_numbers`.
    """
    if replaced is not None:
        return None, ""
    for name in names:
        if holds_numbers(file, name):
            value = float(read_numbers(file, name, quantity, remedy)[0])
            if value != 0 and np.isfinite(value):
                return value, name
    return None, ""


def read_pixel(file: Hdf5File, detector: str, replaced: Any) -> Pair | None:
    """Return the pixel (y, x) in metres of a detector's group; None where the file does not say it.

    Args:
        file: open.
        detector: the group.
        replaced: what the recipe says instead; unless it is None, nothing is looked at.
    """
    y, x = (
        read_number(file, (f"{detector}/{axis}_pixel_size",), PIXEL, replaced, "data.detector_pixel_m")[0]
        for axis in "yx"
    )
    return None if y is None or x is None else (y, x)


def read_first_positive(file: Hdf5File, name: str) -> float | None:
    """Return the first number of a dataset in its own unit; None where there is none, or it is not positive."""
    values = read_dataset(file, name, 1000, "iuf").reshape(-1)[:1] if holds_numbers(file, name) else ()
    return next((float(value) for value in values if np.isfinite(value) and value > 0), None)


def find_position_unit(unit_names: Iterable[str | None]) -> Unit | None:
    """Return the recipe's unit for positions whose coordinates say these; None for several, none or an unknown one."""
    unit_of_metres: dict[float, Any] = {metres: unit for unit, metres in METRES.items()}
    units = {unit_of_metres.get(LENGTH_M.get(normalised(unit), 0.0)) if unit else None for unit in unit_names}
    return units.pop() if len(units) == 1 else None


def holds_numbers(file: Hdf5File, name: str) -> bool:
    """Return True for a dataset of numbers; False for a group, text, or nothing."""
    item = item_of(file, name)
    return isinstance(item, h5py.Dataset) and item.dtype.kind in "iuf"
