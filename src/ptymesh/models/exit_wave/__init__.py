"""Operators on the exit wave, behind the last slice of the object."""
