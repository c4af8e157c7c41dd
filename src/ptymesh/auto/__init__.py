"""Stages of a data set, found by trying: how data are read, and what suits them.

given      what stands in the place of a recipe
data       a file alone becomes a recipe; what it does not say is asked for
deciding   a recipe with stages of one that leaves them open
search     what all questions share: the recipe, the budget, where candidates run
reading    how a scan is read: its order, rotation, slices, geometry, begun anew with each
restarts   the list of those
interview  the list of hypotheses about a scan, one after the other; the recipe that they end with
length     the numbers of epochs of its stages
sweeps     how many there are for all of that
race       two ways to go on from the same estimate, and which of them explains more of what neither has seen
judging    the residual of held-out views, whose own unknowns are fitted on half of their pixels
written    the recipe with the reasons as comments
python     the same in one call
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
