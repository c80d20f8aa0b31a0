"""What the studies of attention and tensor-parallel kernels say as their answer holds at the points that decide it."""

import pytest
from xstage.scenarios.catalogue import find
from xstage.scenarios.study import load_study
from xstage.sim.execute import simulate

STUDIES = ("attention-lengths", "tp-m-sweep", "attention-reserved-sms")


def times_us(name, wanted):
    """(last sender free, last byte visible as well) of the points whose cells, in the order of the axes, are `wanted`."""
    study, found = load_study(name), {}
    for point in study.points():
        cells = tuple(str(cell).partition(" ")[0].removeprefix("name=") for cell in study.cells(point).values())
        if cells in wanted:
            resolved = study.resolve(point)
            outcome = simulate(resolved.program(), resolved.fabric(), trace="off").outcome
            found[cells] = outcome.lanes_end_ps / 1e6, max(outcome.lanes_end_ps, outcome.arrived_ps) / 1e6
    assert len(found) == len(wanted)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_its_answer_below_the_question(name):
    first, second = find(name, "study").read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("question: ")
    assert second.startswith("# Answer: ")


def test_from_8192_tokens_on_piggyback_hides_what_senders_would_wait_for():
    lengths = ("4096", "8192", "32768")
    keys = {(tokens, how): ("8", "32", tokens, how) for tokens in lengths for how in ("compute_only", "piggyback")}
    found = times_us("attention-lengths", set(keys.values()))
    waits, late = (
        {t: found[keys[t, "piggyback"]][at] / found[keys[t, "compute_only"]][at] - 1 for t in lengths} for at in (0, 1)
    )
    assert waits["4096"] > 0.01 > waits["8192"]
    assert late["8192"] > 0.01 > late["32768"]


def test_scattering_in_plain_order_loses_from_2048_rows_on_and_reshaped_never():
    rows, policies = ("1024", "2048"), ("serial", "fused", "reshaped")
    found = times_us("tp-m-sweep", {("gemm_rs", m, how) for m in rows for how in policies})
    last = {key[1:]: visible for key, (_, visible) in found.items()}
    assert last["1024", "fused"] < last["1024", "serial"]
    assert last["2048", "fused"] > last["2048", "serial"]
    assert all(last[m, "reshaped"] < last[m, "serial"] for m in rows)


def test_reserving_more_than_20_sms_costs_a_wave():
    found = times_us("attention-reserved-sms", {("32768", sms) for sms in ("8", "20", "24")})
    last = {sms: visible for (_, sms), (_, visible) in found.items()}
    assert last["20"] < last["8"]
    assert last["24"] > 1.15 * last["20"]
