"""Pieces within the object, between or around its slices, and behind the last one."""
