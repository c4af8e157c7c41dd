"""Fused passes on a CPU: the backend, and numba's loops beneath it (compiled/)."""
