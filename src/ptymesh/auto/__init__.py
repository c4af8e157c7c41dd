"""Stages of a data set, found by trying: how data are read, and what suits them.

data_paths       data sets told from recipes on the command line
data             a recipe from a data file alone
dataset_names    datasets in a file of no known format
orientation      the detector's orientation to its scan
deciding         a recipe with stages from one that leaves them open
sweeps           the budget
stage_search     the search for the stages, question by question
search           its base: the recipe so far, the budget, the reasons
optics           defocus or distance
near_field       far field or near field, and its distance
reading          comparison of other ways to read a scan
readings         the list of these
hypotheses       the list of changes of the model
epoch_search     numbers of epochs of the stages
candidates       candidates that continue one estimate, and what runs them
recipe_text      the recipe as text, with the reasons as comments
python           the same in one call
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptymesh.auto.data import described, described_recipe
    from ptymesh.auto.data_paths import is_data, named_after
    from ptymesh.auto.deciding import decide
    from ptymesh.auto.python import reconstruct

_PUBLIC = {
    "decide": "deciding",
    "described": "data",
    "described_recipe": "data",
    "is_data": "data_paths",
    "named_after": "data_paths",
    "reconstruct": "python",
}

__all__ = ["decide", "described", "described_recipe", "is_data", "named_after", "reconstruct"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used, as it takes torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ptymesh.auto' has no attribute {name!r}")
    return getattr(import_module(f"ptymesh.auto.{_PUBLIC[name]}"), name)
