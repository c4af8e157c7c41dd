"""Values of options with units, such as `80 keV`; plain numbers are in eV, metres and radians."""

from __future__ import annotations

import math

import typer

from ptymesh.units import ANGLE, ENERGY, LENGTH, Quantity, parse_quantity


def parse_energy(text: str | float) -> float:
    """Return the energy (eV) that an option says, such as `80 keV`. Raises typer.BadParameter."""
    return _parse(text, ENERGY, "eV")


def parse_length(text: str | float) -> float:
    """Return the length (m) that an option says, such as `0.4 A`. Raises typer.BadParameter."""
    return _parse(text, LENGTH, "metres")


def parse_angle(text: str | float) -> float:
    """Return the angle (rad) that an option says, such as `21.4 mrad`. Raises typer.BadParameter."""
    return _parse(text, ANGLE, "rad")


def _parse(text: str | float, quantity: Quantity, plain: str) -> float:
    """Return the number of a text with or without a unit.

    Args:
        text: of the command line, or an option's default.
        quantity: that it has to be.
        plain: unit of numbers without one.
    """
    try:
        value = parse_quantity(str(text), quantity)
        number = float(text) if value is None else value
    except ValueError as error:
        quoted = repr(str(text)[:60])
        remedy = f"give {plain}, or a number with its unit, such as {quantity.example}"
        raise typer.BadParameter(f"{quoted} is not {quantity.name}; {remedy}.") from error
    if not math.isfinite(number):
        raise typer.BadParameter(f"{str(text)[:60]!r} is not finite; give {quantity.request}.")
    return number
