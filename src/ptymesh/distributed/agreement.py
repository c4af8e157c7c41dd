"""Comparison of what ranks are about to compute, before they compute together.

A rank with another seed, engine or data set would add wrong numbers to the sums of all, and the residual would not show
it. So ranks first compare short facts by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput

#: Most differences that a sentence names.
MOST_NAMED = 3
#: Most characters of a value that a sentence shows.
MOST_SHOWN = 60


def refuse_differences(world: World, facts: Mapping[str, str], remedy: str) -> None:
    """Raise BadInput on all ranks if one of them has other facts than rank 0. Collective: one small message.

    Args:
        world: the ranks.
        facts: values by name, as text; their text must not depend on the rank.
        remedy: what to do about a difference, without a full stop.

    Raises:
        BadInput: the facts of two ranks differ.
    """
    if world.size == 1:
        return
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    halves = [int.from_bytes(part) for part in (digest[:4], digest[4:])]
    signed_halves = torch.tensor(
        [sign * half for half in halves for sign in (1, -1)], dtype=torch.int64, device=world.device
    )
    most, least, most_2, least_2 = world.max(signed_halves)[0].tolist()
    if most == -least and most_2 == -least_2:
        return
    every = [json.loads(facts_text) for facts_text in world.gather_strings(json.dumps(facts))]
    world.heartbeat.agreed = True
    world.barrier()  # no rank may end while others still read
    raise BadInput(difference(dict(enumerate(every)), remedy))


def difference(facts: Mapping[int, Mapping[str, str]], remedy: str) -> str:
    """Return a sentence about the first rank whose facts differ from those of rank 0; empty where there is none.

    Args:
        facts: values by name, for each rank.
        remedy: what to do about it, without a full stop.
    """
    first = facts[0]
    for rank, rank_facts in facts.items():
        names = [name for name in {**first, **rank_facts} if first.get(name) != rank_facts.get(name)]
        if not names:
            continue
        statements = [
            f"{'has' if index else f'Rank {rank} has'} {_format_fact(name, rank_facts)}, "
            f"rank 0 has {_value(name, first)}"
            for index, name in enumerate(names[:MOST_NAMED])
        ]
        more = f" (and {len(names) - MOST_NAMED} more)" if len(names) > MOST_NAMED else ""
        return f"{'; it '.join(statements)}{more}: {remedy}."
    return ""


def flatten(values: object, name: str = "") -> dict[str, str]:
    """Return the leaves of nested dicts and lists as text, by names such as `stages.0.engine`."""
    if isinstance(values, Mapping):
        items: list[tuple[object, object]] = list(values.items())
    elif isinstance(values, list | tuple):
        items = list(enumerate(values))
    else:
        text = "none" if values is None else json.dumps(values, default=str)
        return {name: values if isinstance(values, str) else text}
    flat: dict[str, str] = {}
    for key, value in items:
        flat |= flatten(value, f"{name}.{key}" if name else str(key))
    return flat


def _format_fact(name: str, facts: Mapping[str, str]) -> str:
    return f"{name} {_value(name, facts)}" if name in facts else f"no {name}"


def _value(name: str, facts: Mapping[str, str]) -> str:
    text = " ".join(facts.get(name, "none").split()) or "nothing"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
