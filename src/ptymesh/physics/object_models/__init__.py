"""Object models, each in a file of its own, found by being there: how transmissions follow from real values."""

from __future__ import annotations

from ptymesh.physics.object_models.base import OBJECT_MODELS, TRANSMISSION, ObjectModel, object_model_of
from ptymesh.registry import register_classes

__all__ = ["OBJECT_MODELS", "TRANSMISSION", "ObjectModel", "object_model_of"]

register_classes(OBJECT_MODELS, ObjectModel, __name__, __path__)
