"""Constraints of the object along the beam."""
