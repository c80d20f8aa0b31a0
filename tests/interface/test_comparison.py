"""`compare` warns of what `run` warns of."""

import xstage as xs


def test_a_comparison_names_the_collectives_that_did_not_go_along_with_the_links():
    changes = {"machine.interconnect.drain_rate": "700 GB/s", "workload.m": 1024}
    found = xs.compare("gemm-rs-llama-fused", ["serial", "fused"], overrides=changes)
    [said] = found.warnings
    assert "ring_rate = 371 GB/s" in said
    assert found.as_dict()["warnings"] == [said]
    assert xs.compare("gemm-rs-llama-fused", ["serial"], overrides={"workload.m": 1024}).warnings == ()
    assert said[:50] in found._repr_html_()
