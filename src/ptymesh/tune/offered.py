"""Optuna's samplers and pruners by name, with their own options.

A name is that of Optuna's class without its ending, with or without underscores: `tpe`, `cma_es`, `nsgaii`,
`successive_halving`. What a new Optuna brings is offered as soon as it is installed. Optuna is imported when it is
first needed.
"""

from __future__ import annotations

import difflib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ptymesh.errors import BadInput
from ptymesh.sentences import unknown_word

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

#: Options that a study gives itself.
OURS = {"seed", "search_space", "bootstrap", "study"}
#: Packages that Optuna imports when a sampler draws, too late for a good sentence.
NEEDS = {"CmaEsSampler": "cmaes"}
#: Options that name another sampler or pruner.
INNER = ("base_sampler", "wrapped_pruner", "independent_sampler")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings that parts of Optuna may change, which are for those who write against it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        warnings.filterwarnings("ignore", message=".*experimental.*")
        yield


def need_optuna() -> ModuleType:
    """Return the optuna module, which logs errors alone. Raises BadInput where it is not installed."""
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise BadInput("Tuning needs Optuna, which is not installed; `pip install ptymesh[tune]` brings it.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Offer:
    """Classes of an Optuna module, by name.

    Args:
        module: name of the module.
        ending: of the classes' names.
    """

    def __init__(self, module: str, ending: str) -> None:
        self._module, self._ending = module, ending

    @cache  # noqa: B019 - there are two of these, which live as long as the program
    def classes(self) -> dict[str, type]:
        """Return the classes that are offered, by name."""
        need_optuna()
        module = import_module(self._module)
        names = [name for name in module.__all__ if name.endswith(self._ending) and not name.startswith("Base")]
        return {_snake(name.removesuffix(self._ending)): getattr(module, name) for name in names}

    def find(self, what: str, name: str) -> type:
        """Return the class with this name. Raises BadInput, with the nearest name, where there is none."""
        plain_name = _plain(name).removesuffix(self._ending.lower())
        for offered_name, offered_class in self.classes().items():
            if _plain(offered_name) == plain_name:
                return offered_class
        raise BadInput(unknown_word(f"{what}.name", name, sorted(self.classes())))

    def check(self, what: str, name: str, options: Mapping[str, object]) -> None:
        """Check a sampler or pruner and its options.

        Args:
            what: sampler or pruner, for messages.
            name: of the class.
            options: of the class.

        Raises:
            BadInput: Optuna does not know the name or an option, or a package is not installed.
        """
        offered_class = self.find(what, name)
        package = NEEDS.get(offered_class.__name__)
        if package and find_spec(package) is None:
            raise BadInput(f"The {what} {name} needs the package {package}; `pip install {package}`, or use another.")
        option_names = [key for key in inspect.signature(offered_class).parameters if key not in OURS]
        for key, value in options.items():
            if key not in option_names:
                near = difflib.get_close_matches(key, option_names, n=1, cutoff=0.5)
                hint = (
                    f"did you mean {what}.{near[0]}?"
                    if near
                    else f"{name} has {', '.join(option_names) or 'no options'}."
                )
                raise BadInput(f"{what}.{key} is unknown; {hint}")
            if key in INNER:
                inner = value if isinstance(value, Mapping) else {"name": value}
                rest = {k: v for k, v in inner.items() if k != "name"}
                self.check(f"{what}.{key}", str(inner.get("name")), rest)

    def make(self, what: str, name: str, options: Mapping[str, Any], **ours: Any) -> Any:
        """Return an instance of a sampler or pruner.

        Args:
            what: sampler or pruner, for messages.
            name: of the class.
            options: of the class, from the tune file.
            ours: further options, of which it gets those that it has.

        Raises:
            BadInput: Optuna refuses a value.
        """
        offered_class = self.find(what, name)
        parameters = inspect.signature(offered_class).parameters
        arguments = dict(options)
        for key in INNER:
            if key in arguments:
                inner = arguments[key] if isinstance(arguments[key], Mapping) else {"name": arguments[key]}
                rest = {k: v for k, v in inner.items() if k != "name"}
                arguments[key] = self.make(f"{what}.{key}", inner["name"], rest, **ours)
        try:
            with quiet():
                return offered_class(**arguments, **{key: value for key, value in ours.items() if key in parameters})
        except (TypeError, ValueError, AssertionError) as error:
            raise BadInput(f"The {what} {name} refuses its options: {' '.join(str(error).split())}") from error


SAMPLERS = Offer("optuna.samplers", "Sampler")
PRUNERS = Offer("optuna.pruners", "Pruner")


def sampler(name: str, options: Mapping[str, Any], **ours: Any) -> BaseSampler:
    """Return a sampler of Optuna's; `ours`: seed, and the search space of a grid."""
    chosen: BaseSampler = SAMPLERS.make("sampler", name, options, **ours)
    return chosen


def pruner(name: str, options: Mapping[str, Any]) -> BasePruner:
    """Return a pruner of Optuna's."""
    chosen: BasePruner = PRUNERS.make("pruner", name, options)
    return chosen


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())
