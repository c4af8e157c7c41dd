"""Foresight of a run: its batches, memory, messages and work, and the layout that it takes."""
