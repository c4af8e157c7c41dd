"""What an engine works on: the model, this rank's measurement and the layout in one (problem.py)."""

from ptymesh.physics.backend import Chunk
from ptymesh.problem.accumulator import Accumulator
from ptymesh.problem.batch import Asked, Batch, CachedChunk, Gradients
from ptymesh.problem.kept_waves import KeptWaves
from ptymesh.problem.problem import CHUNK_BYTES, Problem

__all__ = ["CHUNK_BYTES", "Accumulator", "Asked", "Batch", "CachedChunk", "Chunk", "Gradients", "KeptWaves", "Problem"]
