"""What every command asks of its arguments before it looks at them: paths that can be followed, numbers that can be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from ptymesh.errors import BadInput
from ptymesh.paths import usable

#: Whole numbers beyond these are mistakes, whatever they count; seeds reach so far.
LARGEST = 2**63
_GIVEN = "ptymesh.arguments"


class Command(TyperCommand):
    """A command whose paths, numbers and texts are looked at first. Raises BadInput, which names the option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps the arguments as they were given: of an empty path nothing else is left."""
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        for parameter in self.params:
            said = max(parameter.opts, key=len) if parameter.param_type_name == "option" else "The path"
            for value in _each(ctx.params.get(parameter.name)):
                _check(value, said, ctx.meta.get(_GIVEN, ()))
        return super().invoke(ctx)


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        yield from value
    else:
        yield value


def _check(value: Any, said: str, given: list[str]) -> None:
    if isinstance(value, Path):
        empty = value == Path() and str(value) not in given and ("" in given or f"{said}=" in given)
        usable("" if empty else value, said)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"{said} is {value}; give a finite number.")
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise BadInput(f"{said} is a number of {len(hex(value)) - 2} hexadecimal digits; give a smaller one.")
