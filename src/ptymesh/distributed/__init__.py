"""Ranks, who owns which view and which part of the object, and sums over ranks."""
