"""Registry of plug-ins by kind and name: ptymesh's own, those registered by a program, those of installed packages.

A package offers a plug-in by an entry point in the group of its kind, in its pyproject.toml:

    [project.entry-points."ptymesh.engines"]
    mine = "my_package:Mine"

It is imported when its name is looked up. Names of ptymesh's own and of registered plug-ins take precedence.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import walk_packages
from types import ModuleType
from typing import ClassVar, Generic, TypeVar

from ptymesh.errors import BadInput

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Plug-ins of one kind.

    Args:
        kind: noun for messages.
        group: of the entry points.
        fits: returns True if an object is a plug-in of this kind.
        remedy: advice for an object that is not.
        also: other names that may be used in place of a plug-in's, for messages.
    """

    #: All registries by their group.
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
        """Return a decorator that registers an object under a name.

        Raises:
            ValueError: another object has this name.
        """

        def keep(thing: Thing) -> Thing:
            if self._own.get(name, thing) is not thing:
                raise ValueError(f"there is already a {self.kind} called {name!r}; choose another name")
            self._own[name] = thing
            return thing

        return keep

    def find(self, name: str) -> Thing | None:
        """Return the plug-in of this name; None if there is none.

        Raises:
            BadInput: a package's plug-in cannot be imported or is of another kind.
        """
        if name in self._own:
            return self._own[name]
        point = next((point for point in self.offered() if point.name == name), None)
        return None if point is None else self.load(point)

    def load(self, point: EntryPoint) -> Thing:
        """Import and return the plug-in of an entry point.

        Raises:
            BadInput: it cannot be imported, or is of another kind.
        """
        try:
            thing: Thing = point.load()
        except Exception as error:  # other packages may raise errors of any kind
            raise BadInput(
                f"The {self.kind} {point.name} = {point.value} cannot be imported ({type(error).__name__}: {error}); "
                "mend its package."
            ) from error
        if not self.fits(thing):
            raise BadInput(f"The entry point {point.name} = {point.value} is no {self.kind}; {self.remedy}.")
        return thing

    def offered(self) -> list[EntryPoint]:
        """Return the entry points of installed packages; nothing is imported."""
        places = tuple((place, _changed_at(place)) for place in sys.path)
        return list(_offered(entry_points, self.group, places))

    def names(self) -> list[str]:
        """Return all names that `find` knows."""
        return [*self._own, *(point.name for point in self.offered() if point.name not in self._own)]

    def __getitem__(self, name: str) -> Thing:
        """Return the plug-in of this name.

        Raises:
            ValueError: there is none; the message names those that exist.
            BadInput: a package's plug-in cannot be imported or is of another kind.
        """
        entry = self.find(name)
        if entry is not None:
            return entry
        names = [*self.also, *self.names()]
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}" if near else f"there are {', '.join(names)}" if names else "there is none"
        raise ValueError(f"{name!r} is not {with_article(self.kind)}; {hint}")

    # --- registered plug-ins (ptymesh's own and the program's) ---

    def __contains__(self, name: object) -> bool:
        return name in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def values(self) -> ValuesView[Thing]:
        """Return the registered plug-ins, without those of installed packages."""
        return self._own.values()

    def items(self) -> ItemsView[str, Thing]:
        """Return names and values of the registered plug-ins, without those of installed packages."""
        return self._own.items()

    def name_of(self, thing: Thing) -> str:
        """Return the name under which a plug-in is registered, else its place as module:name."""
        for name, entry in self._own.items():
            if entry is thing:
                return name
        return f"{thing.__module__}:{thing.__qualname__}"  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _offered(
    search: Callable[..., Iterable[EntryPoint]], group: str, places: tuple[tuple[str, float], ...]
) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. All packages are searched for them, once while no place changes."""
    return tuple(search(group=group))


def _changed_at(place: str) -> float:
    try:
        return os.stat(place or ".").st_mtime
    except OSError:
        return 0.0


def subclass_of(base: type) -> Callable[[object], bool]:
    """Return a predicate that is True for classes derived from `base`."""
    return lambda thing: isinstance(thing, type) and issubclass(thing, base)


def import_modules(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    """Import and yield the modules of a package, in the order of their own names, in whichever folder they are.

    Args:
        package: its `__name__`.
        path: its `__path__`.
    """
    names = [module.name for module in walk_packages(path, f"{package}.") if not module.ispkg]
    for name in sorted(names, key=lambda name: name.rpartition(".")[2]):
        yield import_module(name)


def register_classes(registry: Registry, base: type, package: str, path: Iterable[str]) -> None:
    """Register the named classes derived from `base` that the modules of a package define.

    Classes whose names begin with an underscore are variants that others make of themselves.

    Args:
        registry: of such classes.
        base: from which they are derived; it has no name.
        package: its `__name__`.
        path: its `__path__`.
    """
    for module in import_modules(package, path):
        for kind in vars(module).values():
            if subclass_of(base)(kind) and hasattr(kind, "name") and not kind.__name__.startswith("_"):
                registry.register(kind.name)(kind)


def with_article(name: str) -> str:
    """Return a name with its article: an engine, a potential."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
