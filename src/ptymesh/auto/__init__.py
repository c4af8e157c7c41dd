"""Stages of a data set, found by trying: how data are read, and what suits them.

given       data sets told from recipes on the command line
data        a recipe from a data file alone
deciding    a recipe with stages from one that leaves them open
interview   the search for the stages, question by question
search      its base: the recipe so far, the budget, the reasons
optics      defocus or distance
near_field  far field or near field, and its distance
reading     comparison of other ways to read a scan
restarts    the list of those
hypotheses  the list of changes of the model
length      numbers of epochs of the stages
sweeps      the budget
race        candidates that continue one estimate, and what runs them
judging     the residual of held-out views
orientation  the detector's orientation to its scan
layout      datasets in a file of no known format
written     the recipe as text, with the reasons as comments
python      the same in one call
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptymesh.auto.data import described, described_recipe
    from ptymesh.auto.deciding import decide
    from ptymesh.auto.given import is_data, named_after
    from ptymesh.auto.python import reconstruct

_PUBLIC = {
    "decide": "deciding",
    "described": "data",
    "described_recipe": "data",
    "is_data": "given",
    "named_after": "given",
    "reconstruct": "python",
}

__all__ = ["decide", "described", "described_recipe", "is_data", "named_after", "reconstruct"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used, as it takes torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ptymesh.auto' has no attribute {name!r}")
    return getattr(import_module(f"ptymesh.auto.{_PUBLIC[name]}"), name)
