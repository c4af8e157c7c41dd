"""Settings of other programs on their way into a recipe: each is taken over, or named in a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from ptymesh.engines import ENGINES, find_counterpart
from ptymesh.errors import BadInput
from ptymesh.sentences import quote


@dataclass
class Conversion:
    """A recipe made of another program's settings.

    Attributes:
        program: whose settings these were.
        recipe: groups and keys, as YAML has them.
        remarks: sentences about what means something else here, or is to be looked at.
        unmatched: settings that have no counterpart, with their values.
    """

    program: str
    recipe: dict[str, object]
    remarks: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def report(self) -> list[str]:
        """Return the remarks, and one line for each setting without a counterpart."""
        return [*self.remarks, *(f"No counterpart: {one}" for one in self.unmatched)]

    def to_yaml(self, source: str) -> str:
        """Return the recipe as YAML, with the report as comments; `source`: name of the file of settings."""
        comments = [f"# Made of {self.program}'s {source} by ptymesh convert.", *(f"# {one}" for one in self.report())]
        return "\n".join([*comments, yaml.safe_dump(self.recipe, sort_keys=False, allow_unicode=True)])


def optimiser_named(program: str, name: str, path: str, conversion: Conversion) -> str:
    """Return the engine of an optimiser's name; the one that stands for all others where ptymesh has none of the name.

    Args:
        program: whose settings these are, as in `Engine.peer_names`.
        name: of the optimiser; empty where the settings name none.
        path: of the setting, for the report.
        conversion: gets a line for a name that there is not.

    Raises:
        BadInput: there is none of the name, and no engine stands for others.
    """
    if name in ENGINES.names():
        return name
    counterpart = find_counterpart(program, {""})
    if counterpart is None:
        raise BadInput(f"{path} is {quote(name)}; no engine is called so, and none stands for others.")
    if name:
        conversion.unmatched.append(f"{path}: {name}; {counterpart[0]} is taken")
    return counterpart[0]


class Settings:
    """Groups of settings, which remember those that nobody has asked for.

    Args:
        values: groups, groups within them, and values.
        file: name of the file, for messages.
    """

    def __init__(self, values: Mapping[str, object], file: str) -> None:
        self._values, self._file = values, file
        self._taken: set[str] = set()

    def take(self, path: str, default: object = None) -> object:
        """Return the value at a path (`group.key`), or the default where it is missing or null; it counts as used."""
        self._taken.add(path)
        value = self.value(path)
        return default if value is None else value

    def value(self, path: str) -> object:
        """Return the value at a path, None where it is missing; it does not count as used."""
        value: object = self._values
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def keys(self, path: str) -> list[str]:
        """Return the names in a group; none where there is no such group."""
        group = self.value(path)
        return [str(key) for key in group] if isinstance(group, Mapping) else []

    def number(self, path: str) -> float | None:
        """Return a finite number; None where there is none. BadInput for anything else."""
        number = self.take(path)
        if number is None:
            return None
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BadInput(f"{path} in {self._file} is {quote(number)}; it should be a number.")
        return number

    def count(self, path: str, default: int) -> int:
        """Return a whole number of 1 or more. BadInput for anything else."""
        number = self.number(path)
        if number is None:
            return default
        if number < 1 or number != int(number):
            raise BadInput(f"{path} in {self._file} is {number:g}; it should be a whole number of 1 or more.")
        return int(number)

    def text(self, path: str) -> str:
        """Return a text; empty where there is none. BadInput for anything else."""
        text = self.take(path)
        if text is not None and not isinstance(text, str):
            raise BadInput(f"{path} in {self._file} is {quote(text)}; it should be text.")
        return text or ""

    def items(self, path: str) -> list[object]:
        """Return a list; empty where there is none. BadInput for anything else."""
        items = self.take(path)
        if items is not None and not isinstance(items, list):
            raise BadInput(f"{path} in {self._file} is {quote(items)}; it should be a list.")
        return items or []

    def group(self, path: str) -> dict[str, object]:
        """Return a group; empty where there is none, or something else. It counts as used, with all that it holds."""
        group = self.take(path)
        return {str(key): value for key, value in group.items()} if isinstance(group, Mapping) else {}

    def unused(self) -> Iterator[tuple[str, object]]:
        """Yield path and value of what nobody has asked for and is not null, false or empty."""
        yield from self._unused(self._values, "")

    def _unused(self, values: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
        for key, value in values.items():
            path = f"{above}{key}"
            if path in self._taken:
                continue
            if isinstance(value, Mapping):
                yield from self._unused(value, f"{path}.")
            elif value is not None and value is not False and value not in ("", []):
                yield path, value
