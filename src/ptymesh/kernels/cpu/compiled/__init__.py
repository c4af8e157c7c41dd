"""Loops that numba compiles for this CPU. Each file is one subject; backends in the folder above call them."""
