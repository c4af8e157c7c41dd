"""Optuna's samplers and pruners by name."""

from __future__ import annotations

import sys
from typing import Any

import optuna
import pytest

from ptymesh.errors import BadInput
from ptymesh.tune import offered
from ptymesh.tune.offered import PRUNERS, SAMPLERS

#: What a pruner cannot do without.
NEEDED: dict[str, dict[str, Any]] = {
    "patient": {"wrapped_pruner": {"name": "percentile", "percentile": 30.0}, "patience": 2},
    "percentile": {"percentile": 25.0},
    "threshold": {"upper": 1.0},
}


def test_all_of_optunas_are_there() -> None:
    for offer, module in ((SAMPLERS, optuna.samplers), (PRUNERS, optuna.pruners)):
        ending = "Sampler" if offer is SAMPLERS else "Pruner"
        theirs = {name for name in module.__all__ if name.endswith(ending) and not name.startswith("Base")}
        assert {found.__name__ for found in offer.classes().values()} == theirs
    assert {"tpe", "cma_es", "gp", "nsgaii", "qmc", "brute_force", "grid", "random"} <= set(SAMPLERS.classes())
    assert {"median", "hyperband", "successive_halving", "nop"} <= set(PRUNERS.classes())


@pytest.mark.parametrize("name", ["TPE", "tpe", "TPESampler", "cma-es", "CmaEs", "cmaes"])
def test_names_may_be_written_as_one_likes(name: str) -> None:
    assert SAMPLERS.find("sampler", name).__name__ in ("TPESampler", "CmaEsSampler")


def test_every_pruner_can_be_made() -> None:
    for name, made in PRUNERS.classes().items():
        options = NEEDED.get(name, {})
        PRUNERS.check("pruner", name, options)
        assert type(offered.pruner(name, options)) is made


def test_options_arrive() -> None:
    made: Any = offered.sampler("tpe", {"n_startup_trials": 3}, seed=1)
    assert made._n_startup_trials == 3
    patient: Any = offered.pruner("patient", NEEDED["patient"])
    assert patient._wrapped_pruner._percentile == 30.0


def test_refused_values() -> None:
    with pytest.raises(BadInput, match=r"^The pruner percentile refuses its options: "):
        offered.pruner("percentile", {"percentile": 300.0})
    with pytest.raises(BadInput, match=r"sampler\.seed is unknown"):
        SAMPLERS.check("sampler", "tpe", {"seed": 3})


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="The sampler cma_es needs the package cmaes; `pip install cmaes`"):
        SAMPLERS.check("sampler", "cma_es", {})
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r"pip install ptymesh\[tune\]"):
        offered.need_optuna()
