"""Checkpoints: the state on disk from which any number of ranks continue, and what identifies their data."""
