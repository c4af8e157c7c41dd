"""Many reconstructions over many devices, searching for parameters.

    import ptymesh as pm
    found = pm.tune("tune.yaml")
    print(found.best.settings, found.best.value)

The package itself is what is called: `ptymesh.tune` is both its name and the function's.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptymesh.tune.session import StudyOutcome


def tune(what: Any, space: dict[str, Any] | None = None, **options: Any) -> StudyOutcome:
    """Searches for the recipe that suits best; see `ptymesh.tune.python.tune`, which this is."""
    from ptymesh.tune.offered import need_optuna

    need_optuna()  # what follows imports it
    from ptymesh.tune.python import tune as run

    return run(what, space, **options)


class _Callable(ModuleType):
    """Importing a module of this package puts the package where `ptymesh.tune` was the function: it may be called."""

    def __call__(self, what: Any, space: dict[str, Any] | None = None, **options: Any) -> StudyOutcome:
        return tune(what, space, **options)


sys.modules[__name__].__class__ = _Callable
