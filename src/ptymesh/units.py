"""Numbers with units, as recipes and command lines may give them: `80 keV`, `21.4 mrad`, `0.4 A`.

Units are told by capitals, too, because a meV is no MeV. Files, which are less careful, have rules of their own
(`ptymesh.io.units`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

#: A number, its exponent, and the unit after it. Text such as `1e-8` has no unit.
_WITH_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3}))?\s*([A-Za-zµμÅ\u212b°]+)")
#: Longest text that is taken for a number with its unit.
_LONGEST = 60


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity.

    Attributes:
        name: with its article, for messages.
        example: a value with a unit.
        powers: exponent of ten by which each unit is larger than the one that plain numbers are in.
        factors: the same of units that are larger by no power of ten.
    """

    name: str
    example: str
    powers: Mapping[str, int]
    factors: Mapping[str, float]

    @property
    def request(self) -> str:
        """Words for what to give, for messages."""
        return f"{self.name}, such as {self.example}"


LENGTH = Quantity(
    "a length",
    "10 nm",
    {"m": 0, "cm": -2, "mm": -3, "um": -6, "µm": -6, "nm": -9, "A": -10, "Å": -10, "angstrom": -10, "pm": -12},
    {},
)
_DEGREES = ("deg", "degree", "degrees", "°")
ANGLE = Quantity(
    "an angle",
    "21.4 mrad",
    {"rad": 0, "mrad": -3, "urad": -6, "µrad": -6},
    dict.fromkeys(_DEGREES, math.pi / 180),
)
DEGREES = Quantity(
    "an angle",
    "30 deg",
    dict.fromkeys(_DEGREES, 0),
    {"rad": 180 / math.pi, "mrad": 0.18 / math.pi, "urad": 0.18e-3 / math.pi, "µrad": 0.18e-3 / math.pi},
)
ENERGY = Quantity("an energy", "80 keV", {"eV": 0, "keV": 3, "MeV": 6, "GeV": 9}, {})

#: Quantities by the endings of the keys that hold them.
BY_ENDING = {"m": LENGTH, "rad": ANGLE, "deg": DEGREES, "eV": ENERGY}


def quantity_of(key: str) -> Quantity | None:
    """Return the quantity that a key holds by its ending, such as that of `step_m`; None where it says none."""
    head, _, ending = key.rpartition("_")
    return BY_ENDING.get(ending) if head else None


def parse_quantity(text: str, quantity: Quantity) -> float | None:
    """Return the number that a text with a unit says, in the unit that plain numbers are in.

    Powers of ten are exact: `0.4 A` is the same number as 0.4e-10.

    Args:
        text: such as `80 keV`, with or without a blank.
        quantity: that it has to be.

    Returns:
        None for a text that is no number with a unit after it.

    Raises:
        ValueError: the unit is of another quantity, or unknown.
    """
    match = None if len(text) > _LONGEST else _WITH_UNIT.fullmatch(text.strip())
    if match is None:
        return None
    digits, exponent, unit = match[1], int(match[2] or 0), match[3].replace("μ", "µ").replace("\u212b", "Å")
    if unit in quantity.powers:
        return float(Decimal(f"{digits}e{exponent + quantity.powers[unit]}"))
    if unit in quantity.factors:
        return float(f"{digits}e{exponent}") * quantity.factors[unit]
    raise ValueError(f"{unit} is no unit of {quantity.name}")


def read_quantity(name: str, value: object, quantity: Quantity) -> object:
    """Return the number that a text of a recipe says, with or without a unit; other values as they are.

    Args:
        name: of the value, for messages.
        value: of a recipe.
        quantity: that it has to be.

    Raises:
        ValueError: the unit is of another quantity.
    """
    if not isinstance(value, str):
        return value
    try:
        number = parse_quantity(value, quantity)
    except ValueError as error:
        raise ValueError(f"{name} is {value!r}; give {quantity.request}") from error
    if number is None:
        with suppress(ValueError):
            return float(value)  # YAML reads 1e-8 as text
        return value
    return number
