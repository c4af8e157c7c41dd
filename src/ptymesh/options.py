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
from pydantic_core import InitErrorDetails

from ptymesh.errors import BadInput
from ptymesh.paths import usable
from ptymesh.sentences import sentence


class Options(BaseModel):
    """Group of options, which refuses unknown keys, and booleans and infinities where a number belongs.

    numpy's numbers are numbers. Construction and assignment raise BadInput with one sentence; only pydantic's own
    functions, such as `model_validate`, raise its ValidationError. A subclass may override the configuration. The
    validator of a class is built when the class is first used, since a run uses few of the eighty there are.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_assignment=True, defer_build=True)

    if not TYPE_CHECKING:  # type checkers should see the fields of each class as parameters

        def __init__(self, /, **values: Any) -> None:
            """Validate and set the values. Raises BadInput for invalid ones."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise BadInput(sentence(error, values, type(self))) from error

        # pydantic then calls its own constructor for nested options, whose errors name the whole path
        __init__.__pydantic_base_init__ = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Validate and set a value. Raises BadInput for an invalid one, which changes nothing."""
        try:
            if name in type(self).model_fields:
                value = plain(value)
                _refuse_truths(type(self), {name: value})
                # on a copy first: a validator of the whole group refuses a value when it is set already
                BaseModel.__setattr__(self.model_copy(), name, value)
            super().__setattr__(name, value)
        except ValidationError as error:
            raise BadInput(sentence(error, {name: value}, type(self))) from error

    @classmethod
    def parse(cls, raw: Any, key: str = "") -> Self:
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
    def _numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {key: plain(value) for key, value in values.items()}
        _refuse_truths(cls, values)
        return values


def _refuse_truths(model: type[BaseModel], values: dict[str, Any]) -> None:
    """Raise ValidationError if a value is a boolean where a number belongs."""
    wrong: list[InitErrorDetails] = [
        {"type": "int_type" if wanted is int else "float_type", "loc": (name,), "input": value}
        for name, value in values.items()
        if (wanted := _number_wanted(model, name)) and any(isinstance(one, bool) for one in _leaves(value))
    ]
    if wrong:
        raise ValidationError.from_exception_data(model.__name__, wrong)


def plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's, also within lists and dicts."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "buif":
        return value.tolist()
    if isinstance(value, tuple | list):
        return type(value)([plain(one) for one in value]) if type(value) in (tuple, list) else value
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value


def _leaves(value: Any) -> Iterator[Any]:
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
    found = model.model_fields.get(field)
    if found is None:
        return None
    kinds = set(_kinds(found.annotation))
    if bool in kinds or Any in kinds:
        return None
    return float if float in kinds else int if int in kinds else None


def _kinds(annotation: Any) -> Iterator[Any]:
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


def _path(value: Any, info: ValidationInfo) -> Any:
    """Return a path that the system can follow; leave values of other types for pydantic to refuse."""
    return usable(value, info.field_name or "The path") if isinstance(value, str | Path) else value


#: Path with `~` expanded, which need not exist.
FilePath = Annotated[Path, BeforeValidator(_path)]


def _reference(value: Any, info: ValidationInfo) -> Any:
    """Check that the file in `file` or `file:inside` is a path that the system can follow, and return the text."""
    if isinstance(value, str):
        head, _, inside = value.rpartition(":")
        usable(head if head and inside and "\0" not in value else value, info.field_name or "The path")
    return value


#: Text that names a file, or an array in a file: `file.npz:name`, `file.h5:/path`.
Reference = Annotated[str, BeforeValidator(_reference)]
