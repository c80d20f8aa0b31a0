"""An assumption that can decide an answer is named with it."""

import pytest
from xstage.scenarios.loader import load

from xstage.cautions import cautions

SLOW = {"disturb.degraded_link": {"gpu": 1, "factor": 0.5}}


def said(name, **changes):
    resolved = load(name, changes)
    return cautions(resolved, resolved.program())


def test_a_degraded_link_beside_pulls_names_the_arbitration_that_is_assumed():
    [sentence] = said("megamoe-flash-skewed", **SLOW)
    assert "this run has fifo; compare machine.interconnect.reply_arbitration=fair" in sentence


@pytest.mark.parametrize(("name", "changes"), [("megamoe-flash-skewed", {}), ("uniform-all-to-all", SLOW)])
def test_nothing_is_said_without_one_or_without_loads(name, changes):
    assert not said(name, **changes)
