"""The name under which plug-ins import probe starts; they are in ptymesh.recipe.starts."""

from ptymesh.recipe.starts import PROBE_STARTS, ProbeStart

__all__ = ["PROBE_STARTS", "ProbeStart"]
