"""Checks of the arguments of every command before it runs: paths that can be followed, numbers in range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from ptymesh.errors import BadInput
from ptymesh.paths import usable

#: Bound of all integers: larger ones are mistakes, whatever they count; seeds use the whole range.
LARGEST = 2**63
_GIVEN = "ptymesh.arguments"


class Command(TyperCommand):
    """Command whose paths, numbers and texts are checked first. Raises BadInput, which names the option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the arguments as they were given, which alone show that a path was empty, and parse them."""
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Check the parsed values and run the command."""
        for parameter in self.params:
            name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else "The path"
            for value in _each(ctx.params.get(parameter.name)):
                _check(value, name, ctx.meta.get(_GIVEN, ()))
        return super().invoke(ctx)


def _each(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        yield from value
    else:
        yield value


def _check(value: object, name: str, option_value: list[str]) -> None:
    if isinstance(value, Path):
        empty = (
            value == Path() and str(value) not in option_value and ("" in option_value or f"{name}=" in option_value)
        )
        usable("" if empty else value, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"{name} is {value}; give a finite number.")
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise BadInput(f"{name} is a number of {len(hex(value)) - 2} hexadecimal digits; give a smaller one.")
