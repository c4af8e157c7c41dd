"""Stages of a data set, found by trying: how data are read, and what suits them.

data       a file alone becomes a recipe; what it does not say is asked for
decide     the list of hypotheses about a scan, one after the other; the recipe that they end with
race       two ways to go on from the same estimate, and which of them explains more of what neither has seen
judging    the residual of held-out views, whose own unknowns are fitted on half of their pixels
written    the recipe with the reasons as comments
python     the same in one call
"""

from ptymesh.auto.data import described, is_data, named_after
from ptymesh.auto.decide import decide
from ptymesh.auto.python import reconstruct

__all__ = ["decide", "described", "is_data", "named_after", "reconstruct"]
