"""`xstage report`: one page of whatever a command found, with everything in it and nothing to fetch."""

import json
import os
import re
from html.parser import HTMLParser

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from xstage.hw_validate import validate
from xstage.plots.html_page import MOST_ROWS, Page, Section, Table, cell, render, table_of
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main
from xstage.pages.answers import _fastest
from xstage.pages.traces import _bars
from xstage.paper.calls import Speedups

from ..hw_validate.made_up_hardware import MadeUpHardware

SMALL_MOE = ["megamoe-flash-wave", "--set", "workload.tokens=512"]
ANSWERS = {
    "run": ["run", "isolated-burst", "--set", "workload.burst=40KiB"],
    "compare": ["compare", *SMALL_MOE, "--policies", "expert_wave,interleaved"],
    "explain": ["explain", "synchronised-train"],
    "tune": ["tune", "gemm-ar-lamport", "--policies", "serial,fused", "--runs", "2"],
    "audit": ["audit", "--machine", "hgx-b200", "--producers", "148", "--bytes", "32KiB", "--gap", "4us"],
    "scenarios": ["scenarios", "list"],
}  # fmt: skip
VOID = {"meta", "link", "br", "wbr", "img", "hr", "input", "path", "use"}


class Checked(HTMLParser):
    """Follows the elements of a page: what is open, how many of each there were, and what attributes point to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.links = [], {}, []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.links += [value for name, value in attributes if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return tmp_path_factory.mktemp("answers")


@pytest.fixture
def answer(answers, capsys):
    """Runs a command with --json, the first time that it is asked for, and returns the file with its answer."""

    def run(name):
        file = answers / f"{name}.json"
        if not file.exists():
            assert main([*ANSWERS[name], "--json"]) == 0
            file.write_text(capsys.readouterr().out)
        return file

    return run


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_becomes_a_page_that_fetches_nothing(answer, tmp_path, name):
    page = xs.report(answer(name), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = Checked(text)
    assert found.seen["table"] == page.tables and found.seen.get("svg", 0) == page.figures
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"(src|href)=|url\((?!#)|@import|fetch\(", re.sub(r'xlink:href="#', "", text))
    assert "How to get it again" in text and "xstage " + " ".join(ANSWERS[name])[:12] in text


def test_a_tuned_policy_whose_settings_are_names_becomes_a_page(tmp_path):
    workload = {"kind": "megamoe", "model": "deepseek-v3", "tokens": 512, "numbers": "w8a8", "policy": "unfused"}
    scenario = {"name": "a", "question": "?", "machine": "hgx-h200", "workload": workload | {"ranks": "symmetric"}}
    tuned = xs.tune(scenario, ["unfused"])
    assert {run.parameters.get("gemm") for run in tuned.curve} == {None, "contiguous", "psum", "masked"}
    (tmp_path / "tune.json").write_text(json.dumps({"schema_version": 1} | tuned.as_dict()))
    assert xs.report(tmp_path / "tune.json", tmp_path / "page.html").figures == 1
    assert "psum" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", ["run", "compare"])
def test_an_answer_without_its_roofs_is_refused(answer, tmp_path, name):
    found = json.loads(answer(name).read_text())
    for row in found.get("policies", [found]):
        del row["roofs"]
    (tmp_path / "altered.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match="is no whole answer of --json: 'roofs' is missing"):
        xs.report(tmp_path / "altered.json", tmp_path / "page.html")


SCENARIO_OF_PAGE = {"workload.burst": "40 KiB"}
RETURNED = {
    "run": lambda: xs.run("isolated-burst", overrides=SCENARIO_OF_PAGE),
    "explain": lambda: xs.explain("isolated-burst", overrides=SCENARIO_OF_PAGE),
    "needs": lambda: xs.needs("isolated-burst", overrides=SCENARIO_OF_PAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_function_returned_becomes_a_page_with_its_parameters(tmp_path, name):
    found = RETURNED[name]()
    page = xs.report(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert page.figures and "isolated-burst" in page.title and Checked(text).seen["table"] == page.tables
    assert re.search(r'<th scope="row">burst</th>\s*<td class="text">40 KiB</td>', text)  # as it was overridden
    assert "arXiv 2607.23264" in text and "there was no command" in text


def test_answers_without_a_scenario_become_pages_too(tmp_path):
    audited = xs.audit("hgx-b200", producers=148, burst="32 KiB", gap="4 us")
    assert xs.report(audited, tmp_path / "page.html").title == "Do bursts fit the stage of hgx-b200?"
    assert xs.report(xs.diff("hgx-h100", "hgx-h200"), tmp_path / "page.html").title == "Difference"
    study = {"name": "s", "question": "?", "scenario": "isolated-burst", "axes": {"workload.burst": ["8 KiB", "9 KiB"]}}
    assert xs.report(xs.estimate(study), tmp_path / "page.html").title == "Estimate"


def test_a_trace_and_a_sweep_become_pages_as_their_files_do(tmp_path):
    trace = xs.run("isolated-burst", trace="full").trace
    xs.write_trace(trace, tmp_path / "trace.parquet")
    shown = [xs.report(one, tmp_path / "page.html") for one in (trace, tmp_path / "trace.parquet")]
    assert (shown[0].tables, shown[0].figures) == (shown[1].tables, shown[1].figures) == (4, 1)
    study = {
        "name": "s",
        "question": "?",
        "scenario": "isolated-burst",
        "axes": {"workload.burst": ["8 KiB", "64 KiB"]},
    }
    swept = xs.sweep(study, tmp_path / "out", workers=1)
    pages = [xs.report(one, tmp_path / name) for one, name in ((swept, "a.html"), (swept.folder, "b.html"))]
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert pages[0].title == "Sweep s"


@pytest.mark.parametrize("made", [3, None, pd.DataFrame(), xs.Machine, xs.load_scenario("isolated-burst")])
def test_what_is_no_answer_is_refused(tmp_path, made):
    with pytest.raises(InputError, match="is nothing that a page is made of"):
        xs.report(made, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_trace_without_ops_says_which_trace_a_page_needs(tmp_path):
    with pytest.raises(InputError, match="ops need a full trace"):
        xs.report(xs.run("isolated-burst").trace, tmp_path / "page.html")


def test_a_page_says_the_numbers_of_its_answer(answer, tmp_path):
    file = answer("run")
    xs.report(file, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = json.loads(file.read_text())
    assert f'data-value="{found["makespan_us"]}"' in text
    assert "workload.burst=40KiB" in text  # the command
    assert re.search(r'<th scope="row">burst</th>\s*<td class="text">40 KiB</td>', text)  # the workload that it meant
    assert "arXiv 2607.23264" in text  # where the machine's numbers are from


def test_the_same_answer_gives_the_same_page(answer, tmp_path):
    file = answer("run")
    for name in ("a.html", "b.html"):
        xs.report(file, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_validation_becomes_a_page_with_its_law_and_its_ops_another(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(validate, "open_backend", lambda *options, **others: MadeUpHardware())
    assert main(["validate", "--programs", "4", "--ops", str(tmp_path / "ops.parquet"), "--json"]) == 0
    (tmp_path / "validate.json").write_text(capsys.readouterr().out)
    page = xs.report(tmp_path / "validate.json", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert page.figures == 1 and "made up &lt;b&gt;&amp;&lt;/b&gt;" in text and "Verdict: agrees." in text
    assert "<caption>median absolute errors</caption>" in text and "{&#39;" not in text  # no value as Python writes it
    assert xs.report(tmp_path / "ops.parquet", tmp_path / "ops.html").figures == 1
    assert "the median absolute error of an op is" in (tmp_path / "ops.html").read_text()


def test_published_predictions_become_a_page_with_every_row(tmp_path, capsys):
    rows = ["100", "110"]
    head = (
        "source_url,gpu,ranks,hidden,intermediate,experts,topk,tokens_per_rank,"
        "act_dtype,weight_dtype,combine_dtype,variant,time_us"
    )
    line = "https://example.org/a,B200,8,4096,2048,256,6,8,fp8_e4m3,fp4_e2m1,bf16,megamoe_sm100_wave,"
    (tmp_path / "mine.csv").write_text("\n".join([head, *(line + time for time in rows)]) + "\n")
    assert main(["published", "--data", str(tmp_path / "mine.csv"), "--workers", "1", "--json"]) == 0
    (tmp_path / "answer.json").write_text(capsys.readouterr().out)
    page = xs.report(tmp_path / "answer.json", tmp_path / "page.html")
    assert page.figures == 1
    text = (tmp_path / "page.html").read_text()
    assert text.count('<a href="https://example.org/a">example.org/a</a>') == 2
    errors = [float(found) for found in re.findall(r'data-value="([-\d.]+)">[-\d.]+</td><td class="text">yes', text)]
    assert abs(errors[-2]) > abs(errors[-1])  # the largest first


def test_a_block_of_a_model_becomes_a_page_with_its_kernels(tmp_path):
    kernels = [{"kernel": "attention", "start_us": 0.0, "time_us": 60.0, "exposed_us": 6.0, "share_pct": 100.0}]
    policy = {
        "policy": "serial",
        "makespan_us": 60.0,
        "speedup": 1.0,
        "exposed_us": 6.0,
        "exposed_pct": 10.0,
        "error": None,
    }
    answer = {
        "schema_version": 1, "model": "flux-1", "machine": "hgx-b200", "gpus": 8, "tokens": 4608,
        "tokens_of": "rank", "expert_numbers": "w8a8", "baseline": "serial", "warnings": ["ranks are on several nodes"],
        "policies": [policy | {"kernels": kernels}, {"policy": "piggyback", "error": "does not fit", "kernels": []}],
    }  # fmt: skip
    (tmp_path / "layer.json").write_text(json.dumps(answer))
    page = xs.report(tmp_path / "layer.json", tmp_path / "layer.html")
    text = (tmp_path / "layer.html").read_text()
    assert (page.title, page.figures) == ("One block of flux-1 on hgx-b200", 1)
    assert "10.0 % of it is communication that nothing hides" in text and "does not fit" in text
    assert "4608 tokens of each rank" in text and "ranks are on several nodes" in text


def test_records_in_records_become_tables_of_their_own(tmp_path):
    answer = {"schema_version": 1, "things": [{"thing": "first", "parts": [{"part": "a", "us": 1.5}]}]}
    (tmp_path / "any.json").write_text(json.dumps(answer))
    page = xs.report(tmp_path / "any.json", tmp_path / "any.html")
    assert "<caption>first: parts</caption>" in (tmp_path / "any.html").read_text() and page.tables == 4


def test_what_paper_found_becomes_pages(tmp_path):
    curve = xs.paper_lead("dsv4-flash", 512, (192, 960), workers=1)
    (tmp_path / "lead.json").write_text(json.dumps({"schema_version": 1} | curve.as_dict()))
    page = xs.report(tmp_path / "lead.json", tmp_path / "lead.html")
    assert page.figures == 1 and page.title == "The row lead of dsv4-flash, 512 tokens a rank"

    calls = pd.DataFrame({
        "model": "dit-moe", "numbers": ["w4a8", "w8a8"], "tokens": 2048, "routing": "balanced", "wave_us": 120.0,
        "interleaved_us": 100.0, "speedup": [1.2, 1.3], "stall_wave_us_per_sm": 2.0, "stall_interleaved_us_per_sm": 1.0,
        "stall_reduction_pct": 50.0,
    })  # fmt: skip
    answer = {"schema_version": 1} | Speedups(calls).as_dict()
    (tmp_path / "calls.json").write_text(json.dumps(answer))
    assert xs.report(tmp_path / "calls.json", tmp_path / "calls.html").figures == 1
    assert "1.249 times as fast in the geometric mean of 2 calls" in (tmp_path / "calls.html").read_text()


def test_a_trace_becomes_a_page(tmp_path, capsys):
    assert main(["run", "isolated-burst", "--trace", str(tmp_path / "trace.parquet")]) == 0
    assert main(["report", str(tmp_path / "trace.parquet"), "-o", str(tmp_path / "page.html")]) == 0
    assert "Trace trace.parquet" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert Checked(text).seen["svg"] == 1
    assert "# xstage run SCENARIO --trace trace.parquet" in text


def test_a_page_draws_every_op_that_takes_its_lane_time(tmp_path):
    """Whatever its kind: a SIGNAL may hand over a result, a LOAD may do no more than ask. Waiting is not drawn."""
    ops = pd.DataFrame({
        "gpu": 0, "sm": 0, "lane": [0, 0, 0, 1, 1], "role": "a", "task": 0, "phase": ["p", "q", "r", "s", "t"], "op": 0,
        "kind": ["signal", "wait", "load", "compute", "signal"], "bytes": 0, "start_us": [0.0, 3.0, 5.0, 0.0, 1.0],
        "end_us": [2.0, 5.0, 5.0, 1.0, 1.0], "stall_us": 0.0, "wait_us": [0.0, 2.0, 0.0, float("nan"), 0.0], "cause": None,
    })  # fmt: skip
    bars, _, _ = _bars(ops, 5.0)
    assert list(bars["phase"]) == ["p", "s"]


def test_a_sweep_becomes_a_page_over_its_axes(tmp_path):
    study = {
        "question": "How long do bursts take?",
        "scenario": "isolated-burst",
        "axes": {"workload.burst": ["16 KiB", "32 KiB"], "workload.producers": [10, 20]},
    }
    xs.sweep(study, tmp_path / "sweep", workers=1)
    page = xs.report(tmp_path / "sweep", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert page.figures >= 1 and "How long do bursts take?" in text and "The smallest makespan" in text
    assert "burst 16 KiB" in text and "the smallest" not in text


def test_the_page_of_a_sweep_draws_what_the_study_names(tmp_path):
    study = {
        "question": "How long do bursts wait",
        "scenario": "isolated-burst",
        "metric": "stall_total_us",
        "axes": {"workload.burst": ["32 KiB", "64 KiB"], "workload.producers": [100, 148]},
    }
    xs.sweep(study, tmp_path / "sweep", workers=1)
    xs.report(tmp_path / "sweep", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "How long do bursts wait." in text
    assert text.index("stall, sum over lanes") < text.index("makespan, µs over")
    assert "(the command was not recorded)" in text


def test_the_page_of_a_sweep_of_the_catalogue_says_its_command_and_parameters(tmp_path):
    xs.sweep("capacity-without-stall", tmp_path / "sweep", workers=1)
    xs.report(tmp_path / "sweep", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "xstage sweep capacity-without-stall" in text
    assert "Parameters of point 0" in text and "arXiv" in text


def test_a_page_with_more_axes_than_are_drawn_says_of_which_the_smallest_is_taken(tmp_path):
    axes = {
        "workload.burst": ["1 KiB", "2 KiB", "3 KiB"],
        "workload.producers": [1, 2, 3],
        "workload.gap": ["1 us", "2 us"],
    }
    study = {"question": "?", "scenario": "periodic-train", "axes": axes | {"workload.bursts": [1, 2]}}
    xs.sweep(study, tmp_path / "sweep", workers=1)
    xs.report(tmp_path / "sweep", tmp_path / "page.html")
    assert "over the axes of the study, the smallest over bursts." in (tmp_path / "page.html").read_text()


def test_the_page_of_a_tuning_has_errors_behind_the_settings(answer, tmp_path):
    found = json.loads(answer("tune").read_text())
    found["curve"][-1] |= {"error": "it failed", "parameters": {"lag": 3}}  # a setting that no row before has
    (tmp_path / "tune.json").write_text(json.dumps(found))
    xs.report(tmp_path / "tune.json", tmp_path / "page.html")
    heads = re.findall(r"<button[^>]*>([^<]*)", (tmp_path / "page.html").read_text())
    assert heads.index("policy") < heads.index("lag") < heads.index("error")


def test_the_page_of_an_explanation_names_its_columns_in_words(tmp_path):
    answer = {"schema_version": 1, "scenario": "a", "machine": "b", "total_us": 2.0, "total_is": "sender_visible_us",
              "sentence": "So.", "bars": [
        {"name": "q", "cause": "Q", "us": 2.0, "share_pct": 100.0, "removed_by": "more", "alone_us": 2.0}]}  # fmt: skip
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    xs.report(tmp_path / "answer.json", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "share, %" in text and "gone with" in text and "removed_<wbr>by" not in text
    assert "what is left of the time (sender-visible)" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"\xff\xff", r"is not JSON: .* \(allowed: what a command prints with --json, a trace as \.parquet"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is no answer of xstage"),
        (b'{"a": 1}', r"is no answer of xstage \(allowed: what a command prints with --json, a trace as \.parquet"),
        (b'{"error": {"message": "m"}}', "is the answer of a command that failed"),
        (b'{"traceEvents": []}', "is a Kineto trace"),
        (b'{"schema_version": 1, "a": NaN}', "is not JSON: NaN is no finite number"),
        (b'{"schema_version": 1, "a": -Infinity}', "is not JSON: -Infinity is no finite number"),
        (b'{"schema_version": 1, "a": 1e999}', "is not JSON: 1e999 is no finite number"),
        (b'{"schema_version": 1, "a": ' + b"9" * 400 + b"}", "is not JSON: a number of 400 digits is beyond 64 bits"),
        (b'{"schema_version": 1, "a": "\\ud800"}', "is not JSON: .* surrogates not allowed"),
        (b'{"schema_version": 1, "command": {"a": 1}}', "is no answer of xstage: its command is none"),
        (b'{"schema_version": 1, "timing": 3}', "is no answer of xstage: its timing is none"),
        (b'{"schema_version": 1, "command": "xstage run \'a"}', "is no whole answer of --json: No closing quotation"),
    ],
)
def test_another_file_is_refused(tmp_path, content, said):
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(InputError, match=said):
        xs.report(tmp_path / "other.json", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_does_not_replace_what_it_is_made_from(tmp_path):
    (tmp_path / "answer.html").write_text('{"schema_version": 1}')
    with pytest.raises(InputError, match="is the file that is read"):
        xs.report(tmp_path / "answer.html", tmp_path / "answer.html")
    assert (tmp_path / "answer.html").read_text() == '{"schema_version": 1}'


def test_a_pipe_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a pipe or a device"):
        xs.report(os.devnull, tmp_path / "page.html")


def test_what_is_not_there_or_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        xs.report(tmp_path / "none.json", tmp_path / "page.html")
    with pytest.raises(InputError, match="has no suffix that can be written"):
        xs.report(tmp_path, tmp_path / "page.txt")
    with pytest.raises(InputError, match=r"has no points\.parquet"):
        xs.report(tmp_path, tmp_path / "page.html")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    says = {"question": "?", "study": "mine", "axes": ["a"], "model_digest": "0"}
    altered = pa.table({"a": [1]}).replace_schema_metadata({"xstage": json.dumps(says)})
    parquet.write_table(altered, tmp_path / "points.parquet")
    with pytest.raises(InputError, match="does not say its axes and its metric"):
        xs.report(tmp_path, tmp_path / "page.html")
    with pytest.raises(InputError, match="is no column of it"):
        xs.report(tmp_path / "other.parquet", tmp_path / "page.html")


def test_text_of_an_answer_is_no_markup():
    page = Page("<b>", "", "", [Section("", [Table("", ("a",), [["<script>alert(1)</script>"]])])])
    assert "<script>alert(1)" not in render(page) and "<b>" not in render(page)


def test_a_long_table_says_what_it_leaves_out():
    page = Page("", "", "", [Section("", [table_of("", pd.DataFrame({"n": range(MOST_ROWS + 5)}))])])
    assert "5 more rows are left out" in render(page)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (float("nan"), ""), (True, "yes"), (12345.6, "12,346"), (0.12345, "0.1235"), (7, "7")],
)
def test_a_cell_reads_as_people_write(value, shown):
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("makespans", "said"),
    [
        ({"a": 10.0, "b": 12.0}, "a is fastest with 10.0 µs: the baseline, 1.200 times as fast as the next, b."),
        ({"a": 10.0, "b": 8.0}, "b is fastest with 8.0 µs, 1.250 times as fast as a."),
        ({"a": 10.0}, "a is fastest with 10.0 µs."),
    ],
)
def test_the_page_of_a_comparison_says_what_the_fastest_is_faster_than(makespans, said):
    """Not than itself, where it is the baseline."""
    ran = [{"policy": name, "makespan_us": took, "speedup": 10.0 / took} for name, took in makespans.items()]
    assert _fastest(ran, "a") == said
