"""The base of every group of options: what a recipe, an engine, a simulation and a tune file have in common."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails

from ptymesh.paths import usable


class Options(BaseModel):
    """Unknown keys are refused; so are truth values and infinities where a number belongs. numpy's numbers are numbers.

    A subclass may override the configuration.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {key: plain(value) for key, value in values.items()}
        wrong: list[InitErrorDetails] = [
            {"type": "int_type" if wanted is int else "float_type", "loc": (name,), "input": value}
            for name, value in values.items()
            if (wanted := _number_wanted(cls, name)) and any(isinstance(one, bool) for one in _leaves(value))
        ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return values


def plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, also within lists and dicts."""
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
    """int or float where a field takes numbers and no truth values, else None."""
    found = model.model_fields.get(field)
    if found is None:
        return None
    kinds = set(_kinds(found.annotation))
    if bool in kinds or Any in kinds:
        return None
    return float if float in kinds else int if int in kinds else None


def _kinds(annotation: Any) -> Iterator[Any]:
    """Types of the values that an annotation lets through; nested models look after themselves."""
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
    """A path that the system can follow; other things are pydantic's to refuse."""
    return usable(value, info.field_name or "The path") if isinstance(value, str | Path) else value


#: A path, `~` expanded, which need not be there.
FilePath = Annotated[Path, BeforeValidator(_path)]


def _reference(value: Any, info: ValidationInfo) -> Any:
    """The file in `file` or `file:inside` is a path that the system can follow."""
    if isinstance(value, str):
        head, _, inside = value.rpartition(":")
        usable(head if head and inside and "\0" not in value else value, info.field_name or "The path")
    return value


#: Text that names a file, or an array in one: `file.npz:name`, `file.h5:/path`.
Reference = Annotated[str, BeforeValidator(_reference)]
