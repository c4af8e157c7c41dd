"""The problem that an engine works on: loading views, evaluating them, and operations on fields of the object."""

from ptymesh.physics.backend import Chunk
from ptymesh.problem.accumulator import Accumulator
from ptymesh.problem.batch import Batch, CachedChunk, Gradients, ViewUpdates
from ptymesh.problem.chunk_sizes import CHUNK_BYTES
from ptymesh.problem.evaluator import Evaluator
from ptymesh.problem.kept_waves import KeptWaves
from ptymesh.problem.loader import ViewLoader
from ptymesh.problem.object_fields import Fields
from ptymesh.problem.problem import Problem

__all__ = [
    "CHUNK_BYTES",
    "Accumulator",
    "Batch",
    "CachedChunk",
    "Chunk",
    "Evaluator",
    "Fields",
    "Gradients",
    "KeptWaves",
    "Problem",
    "ViewLoader",
    "ViewUpdates",
]
