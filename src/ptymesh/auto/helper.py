"""`python -m ptymesh.auto.helper PID PIPE`: goes on with tracks for the process that started it, until that ends."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection

import torch

from ptymesh import kernels
from ptymesh.auto.race import Arena, Budget, Message, Terms, Track
from ptymesh.distributed.child import end_with
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.run.recipe import Recipe

#: Scans that are kept loaded.
MOST_ARENAS = 2


class Worker:
    """Carries out what messages ask for."""

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._courses: dict[int, Iterator[Track]] = {}

    def answer(self, message: Message) -> list[Track] | None:
        """Where the course stands after each stride; None where it cannot be carried out."""
        try:
            if message.begin is not None:
                self._courses[message.number] = self._arena(message.recipe).steps(*message.begin)
            found = list(islice(self._courses[message.number], message.strides))
            if message.ends:
                del self._courses[message.number]
            return found
        except Exception:  # whoever has asked tries it too, and tells
            return None

    def _arena(self, recipe: Recipe) -> Arena:
        for arena in self._arenas:
            if arena.recipe == recipe:
                return arena
        while len(self._arenas) >= MOST_ARENAS:
            self._arenas.pop(0).close()
        scan = load_measurement(recipe.data, recipe.positions)
        terms = Terms(Solo(torch.device("cpu")), lambda: False, Budget(math.inf))
        self._arenas.append(Arena(recipe, scan, terms, scan.views))
        return self._arenas[-1]


def main(arguments: list[str]) -> int:
    """Exit status."""
    parent, number = map(int, arguments)
    end_with(parent)
    kernels.begin(torch.device("cpu"), torch.complex64)
    with Connection(number) as pipe:
        pipe.send_bytes(b"ready")
        worker = Worker()
        while True:
            try:
                message = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of the process that started this one
            except EOFError:
                return 0
            pipe.send_bytes(pickle.dumps(worker.answer(message)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
