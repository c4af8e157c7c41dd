"""Every ticked cell of docs/reference/engines.md runs and lowers the residual; every empty one is refused first."""

import pytest
from features import ALIKE, FEATURES, PAGE, page_with, refusal, run, table

from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState

CELLS = [
    pytest.param(engine, label, id=f"{name}-{label}")
    for name, engine in ENGINES.items()
    if name not in ALIKE
    for label in FEATURES
]


@pytest.mark.sample(47)
@pytest.mark.parametrize(("engine", "label"), CELLS)
def test_cell(engine, label: str) -> None:  # type: ignore[no-untyped-def]
    feature = FEATURES[label]
    if refusal(engine, feature) is not None:
        with pytest.raises((BadInput, ValueError)):
            run(engine, feature, epochs=1)
        return
    before, after = run(engine, feature, epochs=4)
    assert after < 0.9 * before


@pytest.mark.parametrize("name", sorted(ALIKE))
def test_engines_that_share_a_column_run(name: str) -> None:
    before, after = run(ENGINES[name], FEATURES["far field"], epochs=4)
    assert after < before


def test_the_page_holds_the_table_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(table(), page), "run PYTHONPATH=tests python tests/conformance/features.py"


def test_a_refusal_comes_before_any_work() -> None:
    from toy import make

    toy = make(slices=2)
    state = RunState(toy.start())
    with pytest.raises(BadInput):
        Loop(toy.problem(), state, [ENGINES["rpie"](epochs=1), ENGINES["dm"](epochs=1)])
    assert state.done_epochs == 0
