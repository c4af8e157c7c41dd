"""Ranks, ownership of views and of parts of the object, and sums over ranks."""
