"""Base class of option groups of recipes, engines, simulations and tune files.

Invalid values are refused with the same message in a recipe and in a Python call.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ptymesh.errors import BadInput
from ptymesh.paths import usable
from ptymesh.sentences import sentence
from ptymesh.units import Quantity, parse_quantity, quantity_of


class Options(BaseModel):
    """Group of options, which refuses unknown keys, and booleans and infinities where a number belongs.

    numpy's numbers are numbers, and so are texts with a unit, such as `80 keV`, in fields whose names end in one: `_m`,
    `_rad`, `_deg`, `_eV`. Construction and assignment raise BadInput with one sentence; only pydantic's own
    functions, such as `model_validate`, raise its ValidationError. A subclass may override the configuration. The
    validator of a class is built when the class is first used, since a run uses few of the eighty there are.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_assignment=True, defer_build=True)

    if not TYPE_CHECKING:  # type checkers should see the fields of each class as parameters

        def __init__(self, /, **values: object) -> None:
            """Validate and set the values. Raises BadInput for invalid ones."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise BadInput(sentence(error, values, type(self))) from error

        # pydantic then calls its own constructor for nested options, whose errors name the whole path
        __init__.__pydantic_base_init__ = True

    def __setattr__(self, name: str, value: object) -> None:
        """Validate and set a value. Raises BadInput for an invalid one, which changes nothing."""
        try:
            if name in type(self).model_fields:
                value = _in_si(type(self), {name: plain(value)})[name]
                _refuse_truths(type(self), {name: value})
                # on a copy first: a validator of the whole group refuses a value when it is set already
                BaseModel.__setattr__(self.model_copy(), name, value)
            super().__setattr__(name, value)
        except ValidationError as error:
            raise BadInput(sentence(error, {name: value}, type(self))) from error

    @classmethod
    def parse(cls, raw: object, key: str = "") -> Self:
        """Return options from plain dicts and lists.

        Args:
            raw: the values.
            key: of the recipe under which they stand, for messages.

        Raises:
            BadInput: an invalid value; the message is about the first one.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise BadInput(sentence(error, raw, cls, key)) from error

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        values = _in_si(cls, {key: plain(value) for key, value in values.items()})
        _refuse_truths(cls, values)
        return values


def _refuse_truths(model: type[BaseModel], values: dict[str, object]) -> None:
    """Raise ValidationError if a value is a boolean where a number belongs."""
    wrong: list[InitErrorDetails] = [
        {"type": "int_type" if number is int else "float_type", "loc": (name,), "input": value}
        for name, value in values.items()
        if (number := _number_wanted(model, name)) and any(isinstance(one, bool) for one in _leaves(value))
    ]
    if wrong:
        raise ValidationError.from_exception_data(model.__name__, wrong)


def _in_si(model: type[BaseModel], values: dict[str, object]) -> dict[str, object]:
    """Return values in which texts with a unit are numbers, in the units that the fields' names say.

    Raises:
        ValidationError: a unit of another quantity.
    """
    wrong: list[InitErrorDetails] = []
    out = dict(values)
    for name, value in values.items():
        quantity = quantity_of(name) if isinstance(name, str) else None
        if quantity is not None and isinstance(value, str | list | tuple) and _number_wanted(model, name) is float:
            out[name] = _without_unit(value, quantity, (name,), wrong)
    if wrong:
        raise ValidationError.from_exception_data(model.__name__, wrong)
    return out


def _without_unit(
    value: object, quantity: Quantity, place: tuple[str | int, ...], wrong: list[InitErrorDetails]
) -> object:
    """Return a value with its texts with a unit as numbers; what is wrong is added to `wrong`.

    Args:
        value: text, number, or a list of them; other values are returned as they are.
        quantity: of the field.
        place: of the value, for messages.
        wrong: errors so far.
    """
    if isinstance(value, list | tuple):
        values = [_without_unit(one, quantity, (*place, index), wrong) for index, one in enumerate(value)]
        return values if isinstance(value, list) else tuple(values)
    if not isinstance(value, str):
        return value
    try:
        number = parse_quantity(value, quantity)
    except ValueError:
        kind = PydanticCustomError("unit", "Input should be {request}", {"request": quantity.request})
        wrong.append({"type": kind, "loc": place, "input": value})
        return value
    return value if number is None else number


def plain(value: object) -> object:
    """Return numpy's numbers and arrays as Python's, also within lists and dicts."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "buif":
        return value.tolist()
    if isinstance(value, tuple | list):
        return type(value)([plain(one) for one in value]) if type(value) in (tuple, list) else value
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    else:
        yield value


@cache
def _number_wanted(model: type[BaseModel], field: str) -> type | None:
    """Return int or float if a field takes numbers and no booleans, else None."""
    field_info = model.model_fields.get(field)
    if field_info is None:
        return None
    kinds = set(_kinds(field_info.annotation))
    if bool in kinds or Any in kinds:
        return None
    return float if float in kinds else int if int in kinds else None


def _kinds(annotation: object) -> Iterator[object]:
    """Yield the types of the values that an annotation allows; nested models validate themselves."""
    arguments = get_args(annotation)
    if arguments:
        for argument in arguments:
            yield from _kinds(argument)
    elif isinstance(annotation, type):
        numeric = next((kind for kind in (float, int) if issubclass(annotation, kind)), None)
        yield annotation if annotation is bool or numeric is None else numeric
    elif annotation is Any:
        yield Any
    else:
        yield type(annotation)  # a value of a Literal


def _path(value: object, info: ValidationInfo) -> object:
    """Return a path that the system can follow; leave values of other types for pydantic to refuse."""
    return usable(value, info.field_name or "The path") if isinstance(value, str | Path) else value


#: Path with `~` expanded, which need not exist.
FilePath = Annotated[Path, BeforeValidator(_path)]


def _reference(value: object, info: ValidationInfo) -> object:
    """Check that the file in `file` or `file:inside` is a path that the system can follow, and return the text."""
    if isinstance(value, str):
        head, _, inside = value.rpartition(":")
        usable(head if head and inside and "\0" not in value else value, info.field_name or "The path")
    return value


#: Text that names a file, or an array in a file: `file.npz:name`, `file.h5:/path`.
Reference = Annotated[str, BeforeValidator(_reference)]
