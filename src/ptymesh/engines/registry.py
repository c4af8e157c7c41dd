"""Plain functions by name: those that come with ptymesh, those that a user registers, and installed packages' own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

Function = TypeVar("Function", bound=Callable)


class Registry(Generic[Function]):
    """Functions of one kind.

    Args:
        kind: what they are, for messages.
        group: entry points of this group are looked at where a name is not known otherwise.
        also: names that are no functions but may stand in their place, for messages.
    """

    def __init__(self, kind: str, group: str, also: tuple[str, ...] = ()) -> None:
        self.kind, self.group, self.also = kind, group, also
        self._known: dict[str, Function] = {}

    def register(self, name: str) -> Callable[[Function], Function]:
        """Decorator that gives a function its name. Raises ValueError for a name that another function has."""

        def keep(function: Function) -> Function:
            if self._known.get(name, function) is not function:
                raise ValueError(f"there is already a {self.kind} called {name!r}; choose another name")
            self._known[name] = function
            return function

        return keep

    def __getitem__(self, name: str) -> Function:
        """The function of this name. Raises ValueError naming those that there are."""
        if name in self._known:
            return self._known[name]
        found = {entry.name: entry for entry in entry_points(group=self.group)}
        if name in found:
            return self.register(name)(found[name].load())
        known = [*self.also, *self, *found]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}" if near else f"there are {', '.join(known)}"
        raise ValueError(f"{name!r} is not a {self.kind}; {hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def name_of(self, function: Function) -> str:
        """The name under which a function is known, else where it stands, as module:name."""
        for name, known in self._known.items():
            if known is function:
                return name
        return f"{function.__module__}:{function.__qualname__}"
