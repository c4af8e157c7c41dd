"""What can be plugged in, by kind and name: ptymesh's own, what a program registers, what installed packages offer.

A package offers one by an entry point in the group of its kind, in its pyproject.toml:

    [project.entry-points."ptymesh.engines"]
    mine = "my_package:Mine"

It is imported when its name is asked for. Names of ptymesh's own, and registered ones, come first.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar, Generic, TypeVar

from ptymesh.errors import BadInput

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things of one kind.

    Args:
        kind: what they are, for messages.
        group: of the entry points.
        fits: whether something is one of them, and `remedy`: what to do where it is not.
        also: names that are none of them but may stand in their place, for messages.
    """

    #: Every kind that there is, by its group.
    all: ClassVar[dict[str, Registry]] = {}

    def __init__(
        self,
        kind: str,
        group: str,
        fits: Callable[[object], bool] = callable,
        remedy: str = "make it a function",
        also: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.group, self.fits, self.remedy, self.also = kind, group, fits, remedy, also
        self._own: dict[str, Thing] = {}
        Registry.all[group] = self

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Decorator that gives a thing its name. Raises ValueError for a name that another one has."""

        def keep(thing: Thing) -> Thing:
            if self._own.get(name, thing) is not thing:
                raise ValueError(f"there is already a {self.kind} called {name!r}; choose another name")
            self._own[name] = thing
            return thing

        return keep

    def find(self, name: str) -> Thing | None:
        """The one of this name, None where there is none. Raises BadInput where a package's own is unsound."""
        if name in self._own:
            return self._own[name]
        point = next((point for point in self.offered() if point.name == name), None)
        return None if point is None else self.load(point)

    def load(self, point: EntryPoint) -> Thing:
        """What a package offers. Raises BadInput where it cannot be imported, or is of another kind."""
        try:
            thing: Thing = point.load()
        except Exception as error:  # whatever somebody else's package raises
            raise BadInput(
                f"The {self.kind} {point.name} = {point.value} cannot be imported ({type(error).__name__}: {error}); "
                "mend its package."
            ) from error
        if not self.fits(thing):
            raise BadInput(f"The entry point {point.name} = {point.value} is no {self.kind}; {self.remedy}.")
        return thing

    def offered(self) -> list[EntryPoint]:
        """Entry points of installed packages; nothing is imported."""
        return list(entry_points(group=self.group))

    def names(self) -> list[str]:
        """All names that `find` knows."""
        return [*self._own, *(point.name for point in self.offered() if point.name not in self._own)]

    def __getitem__(self, name: str) -> Thing:
        """The one of this name. Raises ValueError naming those that there are, BadInput as `find`."""
        found = self.find(name)
        if found is not None:
            return found
        known = [*self.also, *self.names()]
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}" if near else f"there are {', '.join(known)}" if known else "there is none"
        article = "an" if self.kind[0] in "aeiou" else "a"
        raise ValueError(f"{name!r} is not {article} {self.kind}; {hint}")

    # --- ptymesh's own, and registered ones ---

    def __contains__(self, name: object) -> bool:
        return name in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def values(self) -> ValuesView[Thing]:
        """Those that ptymesh registers itself, without what other packages offer."""
        return self._own.values()

    def items(self) -> ItemsView[str, Thing]:
        """Names and values that ptymesh registers itself, without what other packages offer."""
        return self._own.items()

    def name_of(self, thing: Thing) -> str:
        """The name under which one is known, else where it stands, as module:name."""
        for name, known in self._own.items():
            if known is thing:
                return name
        return f"{thing.__module__}:{thing.__qualname__}"  # type: ignore[attr-defined]


def subclass_of(base: type) -> Callable[[object], bool]:
    """Whether something is a class derived from this one."""
    return lambda thing: isinstance(thing, type) and issubclass(thing, base)
