"""Surroundings that a program around a reconstruction may have changed: modes of torch, and the process itself."""

from __future__ import annotations

import os

import torch

from ptymesh.errors import BadInput, PtymeshError

_has_threads = _is_fork = False


def refuse_surroundings() -> None:
    """Raise BadInput in modes of torch in which nothing can be reconstructed, PtymeshError in a fork that would hang.

    In a fork of a process that has computed, threads of OpenMP are missing, and whoever asks them to work waits for
    ever.
    """
    global _has_threads
    if _is_fork:
        raise PtymeshError(
            "This process was forked from one that had a Reconstruction, whose threads it lacks; start it by "
            "multiprocessing.get_context('spawn') or by ptymesh.spawn, or fork before a Reconstruction is made."
        )
    if torch.is_inference_mode_enabled():
        raise BadInput(
            "torch.inference_mode is on, in which no tensor can be changed in place; leave it, or use no_grad."
        )
    if (device := torch.get_default_device()).type != "cpu":
        raise BadInput(
            f"torch's default device is {device}; give Reconstruction(device=...) instead, and call it within "
            "`with torch.device('cpu'):`."
        )
    _has_threads = _has_threads or torch.get_num_threads() > 1  # by itself a thread is copied with its process


def _note_fork() -> None:
    global _is_fork
    _is_fork = _has_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
