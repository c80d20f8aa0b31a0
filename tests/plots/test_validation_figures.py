"""The figures of a validation report."""

from types import SimpleNamespace

from xstage.hw_validate import figures


def test_what_was_measured_is_on_the_x_axis_and_programs_with_stall_have_their_own_mark():
    programs = [
        SimpleNamespace(measured_issue_us=us, simulated_issue_us=1.05 * us, stalled_share=share)
        for us, share in ((1.0, 0.0), (2.0, 0.5), (4.0, 0.9))
    ]
    drawn = figures.scatter(programs)
    assert drawn.index("issue time measured") < drawn.index("issue time simulated")  # the x axis is drawn first
    assert "#0072b2" in drawn and "#d55e00" in drawn
