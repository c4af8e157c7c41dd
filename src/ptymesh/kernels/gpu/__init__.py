"""Fused passes on a GPU: the backend, and Triton's loops beneath it."""
