"""Positions: steps in a batch and between epochs, trials, views astray, what all share, and changes of anchors."""

from ptymesh.engines.positions.anchoring import reanchor, redistribute
from ptymesh.engines.positions.moving import affine_part, after_batch, after_epoch
from ptymesh.engines.positions.relocation import drop_astray, relocate
from ptymesh.engines.positions.search import search

__all__ = ["affine_part", "after_batch", "after_epoch", "drop_astray", "reanchor", "redistribute", "relocate", "search"]
