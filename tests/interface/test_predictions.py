"""`xstage published`: what is predicted, how it is judged, and the command around it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.published import load_published
from xstage.scenarios.published.cases import mapped
from xstage.sim import predict
from xstage.sim.schedules.megamoe import ExpertWave, Interleaved

import xstage as xs
from xstage.cli import main
from xstage.predictions.answers import answer, answers
from xstage.predictions.choices import choices, score
from xstage.predictions.machine_fit import fit_machine, free_numbers, overhead_us, write_fit
from xstage.predictions.published import Published, ordered, predicted
from xstage.predictions.summary import error_numbers, repeat_spread, summary

HEADER = (
    "source_url,gpu,ranks,hidden,intermediate,experts,topk,tokens_per_rank,"
    "act_dtype,weight_dtype,combine_dtype,variant,time_us"
)
MINE = f"""{HEADER}
https://example.org/a,B200,8,4096,2048,256,6,8,fp8_e4m3,fp4_e2m1,bf16,megamoe_sm100_wave,100
https://example.org/a,B200,8,4096,2048,256,6,8,fp8_e4m3,fp4_e2m1,bf16,my megamoe sm100 wave,110
https://example.org/a,H20,8,4096,2048,256,6,8,fp8_e4m3,fp8_e4m3,bf16,megamoe_sm90_fused_wave_sgl36,430
https://example.org/a,H20,8,4096,2048,256,6,8,fp8_e4m3,fp8_e4m3,bf16,megamoe_sm90_swapab_sgl48,290
https://example.org/a,GTX 9,8,4096,2048,256,6,8,fp8_e4m3,fp8_e4m3,bf16,megamoe_sm90_fused_wave_sgl36,430
https://example.org/a,B200,8,4096,2048,256,6,8,int4,int4,bf16,megamoe_sm100_wave,100
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    file = tmp_path_factory.mktemp("published") / "mine.csv"
    file.write_text(MINE)
    return file


@pytest.fixture(scope="module")
def done(mine):
    return xs.published(mine, workers=1)


def test_every_row_is_predicted_or_says_why_not(done):
    assert done.rows.skipped.isna().tolist() == [True] * 4 + [False] * 2
    assert done.rows.skipped.tolist()[4:] == ["GPU unknown", "part not modelled"]
    assert done.rows.predicted_us.notna().tolist() == [True] * 4 + [False] * 2
    assert done.coverage_pct == pytest.approx(100 * 4 / 6)


def test_the_error_is_of_predicted_against_measured(done):
    row = done.rows.iloc[0]
    assert row.error_pct == pytest.approx(100 * (row.predicted_us - 100) / 100)


def test_equal_cases_have_equal_predictions_and_an_unknown_variant_is_flagged(done):
    known, unknown = done.rows.iloc[0], done.rows.iloc[1]
    assert (known.predicted_us, known.case) == (unknown.predicted_us, unknown.case)
    assert unknown.nearest_variant == "megamoe_sm100_wave"
    assert "unknown variant, megamoe_sm100_wave taken" in unknown.approximation


def test_the_faster_of_two_schedules_of_one_call_is_told(done):
    pairs = choices(done.rows)
    assert pairs[["faster", "slower", "right"]].values.tolist() == [
        ["deepgemm sm90_wave_swapab_sgl48", "deepgemm sm90_wave_sgl36", True]
    ]
    assert score(pairs) == {"pairs": 1, "right": 1, "right_pct": 100}


def test_two_schedules_within_five_percent_are_no_choice(done):
    rows = done.rows.assign(time_us=[100, 104, 300, 310, 1, 1])
    assert score(choices(rows)) == {"pairs": 0, "right": 0, "right_pct": None}


def test_the_json_of_the_command_is_the_contract(mine, capsys):
    assert main(["published", "--data", str(mine), "--workers", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"rows", "summary", "coverage_pct", "baseline", "schema_version", "timing"} <= set(said)
    first = said["rows"][0]
    assert {"predicted_us", "error_pct", "judged", "skipped", "family", "tokens_per_rank", "variant", "time_us"} <= set(
        first
    )
    assert (first["judged"], first["skipped"], first["family"], first["recv_rows_min"]) == (
        True,
        None,
        "deepgemm",
        None,
    )
    assert said["targets"] == [] and "int4" in said["rows"][5]["detail"]
    assert said["rows"][4] == said["rows"][4] | {"judged": False, "predicted_us": None, "skipped": "GPU unknown"}
    assert {"kind", "family", "machine", "tokens", "judged", "mae_pct", "bias_pct", "baseline_mae_pct"} <= set(
        said["summary"][0]
    )
    assert said["baseline"]["mae_pct"] > 0


def test_a_person_sees_tables(mine, capsys):
    assert main(["published", "--data", str(mine), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "4 of 6 rows predicted (67 %), 4 judged: the others GPU unknown 1, part not modelled 1" in out
    assert "the faster of two schedules: 1 of 1 (100 %)" in out
    assert "unknown variant, megamoe_sm100_wave taken" in out and "nan" not in out
    assert "act_dtype with weight_dtype = 'int4 with int4': is not modelled (allowed: fp8_e4m3 with fp4_e2m1" in out
    assert "targets" not in out, "those are set for the rows of the project"


def test_without_a_prediction_there_is_no_error_to_print(mine, capsys):
    assert main(["published", "--data", str(mine), "--gpu", "GTX 9", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 of 1 rows predicted (0 %), 0 judged: the others GPU unknown 1" in out
    assert "error" not in out.partition("\n\n")[2]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--data", "nowhere.csv"], "no such file"),
        (["--fit", "mi300x"], "has no numbers to fit"),
        (["-o", "x.yaml"], "with --fit MACHINE"),
        (["--fit", "hgx-b200", "--data", "x.csv"], "none of --data"),
        (["--fit", "hgx-b200", "--gpu", "B200"], "none of --data, --gpu"),
        (["--fit", "hgx-b200", "-o", "x.txt"], "has no suffix that can be written (allowed: .yaml, .yml)"),
        (["--report", "x.pdf"], "has no suffix that can be written (allowed: .html, .htm)"),
        (["--gpu", "H21"], "gpu = 'H21': has no row (allowed: A100, B200"),
        (["--variant", "megamoe_sm100_wav"], "did you mean 'megamoe_sm100_wave'"),
        (["--gpu", "H20", "--variant", "fa4"], "variant = 'fa4': matches no row"),
    ],
)
def test_bad_input_is_refused(words, said, capsys):
    assert main(["published", *words]) == 2
    assert said in capsys.readouterr().err


def test_rows_are_chosen_by_gpu_and_variant(done, mine):
    assert xs.published(mine, gpu="h20", workers=1).rows.line.tolist() == [4, 5]
    some = xs.published(mine, gpu="B200", variant="*SM100_wave", workers=1)
    assert some.rows.line.tolist() == [2, 7]
    assert some.rows.predicted_us[0] == done.rows.predicted_us[0]
    of_version = xs.published(mine, variant="sm90_wave*", workers=1).rows
    assert of_version.line.tolist() == [4, 5, 6] and (of_version.version.str.startswith("sm90_wave")).all()


def test_the_page_is_that_of_the_answer(mine, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["published", "--data", str(mine), "--gpu", "H20", "--workers", "1", "--report", str(page), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(page)
    text = page.read_text()
    assert "100 % of 2 published rows are predicted" in text
    assert text.count("<svg") == 1


def test_a_page_without_a_prediction_and_a_table_without_a_row(tmp_path, capsys):
    nothing, page = tmp_path / "nothing.csv", tmp_path / "page.html"
    row = MINE.splitlines()[5]
    assert "GTX 9" in row
    nothing.write_text(f"{HEADER}\n{row}\n")
    assert main(["published", "--data", str(nothing), "--workers", "1", "--report", str(page)]) == 0
    assert "0 % of 1 published rows are predicted" in page.read_text()
    nothing.write_text(f"{HEADER}\n")
    assert main(["published", "--data", str(nothing), "--gpu", "H20"]) == 2
    assert "nothing.csv: holds no row" in capsys.readouterr().err


# --- judging


def rows_of(**columns):
    table = load_published("megamoe").reset_index().iloc[: len(columns["time_us"])].copy()
    return table.assign(kind="megamoe", judged=True, baseline_us=1.0, **columns)


def test_a_fit_row_is_predicted_and_not_judged():
    table = load_published("megamoe").reset_index()
    row = table[table.fit & (table.machine == "hgx-b200") & (table.tokens_per_rank == 8)].to_dict("records")
    [found] = predicted(row)
    assert found["predicted_us"] > 0
    assert not found["judged"]


def test_stated_launch_overhead_is_part_of_the_prediction():
    table = load_published("megamoe").reset_index()
    row = table[table.fit & (table.machine == "hgx-b200") & (table.tokens_per_rank == 8)].to_dict("records")[0]
    bare = {**row, "offset_low_us": None, "offset_high_us": None}
    assert overhead_us(row) == 7.5
    assert overhead_us(bare) == 0
    with_overhead, without = predicted([row, bare])
    assert with_overhead["predicted_us"] - without["predicted_us"] == pytest.approx(7.5)


def test_parts_are_shown_beside_whole_calls_and_not_counted_with_them():
    table = load_published("megamoe").reset_index()
    small = {"hidden": 1024, "intermediate": 512, "experts": 32, "topk": 4, "tokens_per_rank": 64.0, "n_gpus": 4}
    launches = table[table.part.isin(["l1_launch", "l2_launch"]) & ~table.fit].assign(**small).to_dict("records")[:2]
    call = {**launches[0], "timed": "kernel", "part": "", "fit": False}
    done = Published(pd.DataFrame(predicted([*launches, call])))
    assert done.rows.judged.tolist() == [False, False, True]
    assert done.parts.part.tolist() == ["l1_launch", "l2_launch"]
    assert done.parts.predicted_us.sum() == pytest.approx(done.rows.predicted_us[2])
    assert [part["part"] for part in done.as_dict()["parts"]] == ["l1_launch", "l2_launch"]
    assert any(
        "parts of calls: mean absolute error" in str(part.title)
        for part in done.printed()
        if part and not isinstance(part, str)
    )


def test_a_missed_target_says_how_far_measurements_of_one_case_lie_apart(done):
    [row] = done.rows.to_dict("records")[:1]
    off = [row | {"time_us": row["predicted_us"] * factor, "error_pct": 100 / factor - 100} for factor in (2, 2, 2.5)]
    [line] = Published(pd.DataFrame(off)).targets.to_dict("records")[:1]
    assert not line["met"]
    assert "3 rows, -53 %, 100 % of the error" in line["furthest_off"]
    assert line["furthest_off"].endswith("up to 25 % apart, and the median of each would be off by 6.7 %")


def test_error_numbers_of_known_errors():
    numbers = error_numbers(pd.Series([-10.0, 10.0, 30.0]))
    assert (numbers["judged"], numbers["worst_pct"], numbers["median_pct"]) == (3, 30, 10)
    assert numbers["mae_pct"] == pytest.approx(50 / 3)
    assert numbers["bias_pct"] == pytest.approx(10)


def test_repeats_give_the_noise_and_equal_times_count_once():
    rows = rows_of(time_us=[100.0, 100.0, 110.0]).assign(**{
        name: "same" for name in ("gpu", "machine", "family", "version", "timed", "part", "act_dtype", "weight_dtype")
    })  # fmt: skip
    sizes = {"hidden": 1, "intermediate": 1, "experts": 1, "topk": 1, "tokens_per_rank": 1, "n_gpus": 8}
    spread = repeat_spread(rows.assign(combine_dtype="bf16", cold_l2=False, **sizes))
    assert sorted(spread) == pytest.approx([100 * 5 / 105] * 2)


def test_a_summary_has_a_line_for_each_group_with_a_judged_row(done):
    lines = summary(done.rows)
    assert lines[["machine", "tokens", "judged"]].values.tolist() == [["hgx-b200", "< 64", 2], ["hgx-h20", "< 64", 2]]


def test_the_90th_percentile_is_that_of_absolute_errors():
    assert error_numbers(pd.Series([-60.0, 0.0, 10.0, 20.0, 10.0]))["p90_pct"] == pytest.approx(44)


def test_a_group_has_the_size_of_its_baselines_errors_and_the_noise_of_its_own_rows():
    """Two kernels, measured twice each: 100 and 110 us, 100 and 300 us. The baseline is off by half, once below."""
    names = ["steady", "steady", "noisy", "noisy"]
    rows = rows_of(time_us=[100.0, 110.0, 100.0, 300.0], machine=names, gpu=names).assign(**{
        name: "same" for name in ("family", "version", "timed", "part", "act_dtype", "weight_dtype")
    })  # fmt: skip
    sizes = {"hidden": 1, "intermediate": 1, "experts": 1, "topk": 1, "tokens_per_rank": 1, "n_gpus": 8}
    rows = rows.assign(combine_dtype="bf16", cold_l2=False, error_pct=0.0, **sizes)
    lines = summary(rows.assign(baseline_us=rows.time_us * [0.5, 1.5, 0.5, 1.5])).set_index("machine")
    assert lines.baseline_mae_pct.to_dict() == pytest.approx({"steady": 50, "noisy": 50})
    assert lines.noise_pct.to_dict() == pytest.approx({"steady": 100 * 5 / 105, "noisy": 50})


def test_worker_processes_answer_as_this_one_does(done, mine):
    rows = done.rows.to_dict("records")[2:4]
    asked = [
        (load_machine("hgx-h20"), mapped(row | {"tokens_per_rank": tokens}).case) for tokens in (4, 8) for row in rows
    ]
    found = dict(answers(asked, 2))
    assert found == dict(answers(asked, 1))
    assert len({reply.predicted_us for reply in found.values()}) == 4


def test_policies_of_one_shape_share_the_draw_of_their_routing(done, monkeypatch):
    """The draw is what takes long in a small case."""
    case = mapped(done.rows.to_dict("records")[0]).case
    draws = []
    drawn = predict.balanced
    monkeypatch.setattr(predict, "balanced", lambda *given: draws.append(given[:4]) or drawn(*given))
    predict._random_scores.cache_clear()
    machine = load_machine("hgx-b200")
    for policy in (ExpertWave(), Interleaved()):
        predict.predict_us(machine, replace(case, policy=policy))
    assert draws == [predict.routing_key(case.shape)]


def test_cases_with_one_routing_stand_side_by_side_and_the_largest_go_first(done):
    [row, *_] = done.rows.to_dict("records")
    questions = [
        (machine, mapped(row | {"tokens_per_rank": tokens}).case)
        for machine in ("hgx-b200", "gb200-nvl72", "hgx-b300") for tokens in (8, 512, 64)
    ]  # fmt: skip
    placed = ordered(questions)
    assert [case.shape.tokens for _, case in placed] == [512] * 3 + [64] * 3 + [8] * 3
    assert set(placed) == set(questions)


def test_progress_is_told_by_work_as_large_cases_go_first(done):
    """Half of the cases, but two thirds of the work: what is left would else seem to take as long again."""
    row = done.rows.to_dict("records")[2]
    told = []
    predicted([row | {"tokens_per_rank": tokens} for tokens in (1, 1024)], 1, lambda *said: told.append(said))
    assert [said[:2] for said in told] == [(1, 2), (2, 2)]
    assert 0.65 < told[0][2] < told[1][2] == pytest.approx(1)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_gets_one_answer_and_ends_the_workers(workers):
    """As a terminal sends it: to every process of the group of the command."""
    words = [sys.executable, "-m", "xstage", "published", "--json", "--workers", workers]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in command.stderr:
        if "runs" in line:
            break
    os.killpg(command.pid, signal.SIGINT)
    out, said = command.communicate(timeout=60)  # until nobody has the other end of the pipes
    assert command.returncode == -signal.SIGINT
    assert json.loads(out) == {"error": {"type": "Interrupted", "message": "interrupted"}}
    assert [line for line in said.splitlines() if "runs" not in line] == []


def test_what_a_machine_cannot_run_becomes_the_reason():
    [row] = [r for r in load_published("megamoe").reset_index().to_dict("records") if r["line"] == 2]
    row |= {"act_dtype": "fp4_e2m1"}
    found = answer(load_machine("hgx-h20"), mapped(row).case)
    assert found.predicted_us is None
    assert "needs FP4 Tensor Cores" in found.reason


def test_a_notebook_shows_the_tables(done):
    assert "errors in %" in done._repr_html_()
    assert "6 rows, 4 judged" in repr(done)


# --- tables of one's own


def of_ones_own(tmp_path, *rows):
    """Their predictions."""
    file = tmp_path / "own.csv"
    file.write_text("\n".join(rows) + "\n")
    return xs.published(file, workers=1).rows


@pytest.mark.parametrize("gpu", ["B200", "B300"])
def test_separate_kernels_of_a_name_of_ones_own_are_predicted_on_every_generation(gpu, tmp_path):
    shape = "8,4096,2048,256,6,8,fp8_e4m3,fp4_e2m1,bf16"
    names = ("DeepEP + DeepGEMM", "deepep low latency + masked gemm", "my unfused baseline", "unfused")
    rows = of_ones_own(tmp_path, HEADER, *(f"mine,{gpu},{shape},{name},100" for name in names))
    assert rows.skipped.isna().all()
    assert rows.nearest_variant.tolist()[3] == ""


ATTENTION_HEADER = "source_url,kind,gpu,ranks,shape,dtype,variant,time_us"


@pytest.mark.parametrize("gpu, machine", [("H100", "hgx-h100"), ("B200", "hgx-b200")])
def test_the_name_of_a_policy_means_that_policy_and_nothing_beside_it(gpu, machine, tmp_path):
    """No All-to-All of Q, K and V is added, and the kernel is that of the GPU."""
    cell = '"{""b"":1,""s"":8192,""h"":32,""d"":128,""causal"":false}"'
    row = of_ones_own(tmp_path, ATTENTION_HEADER, f"mine,ulysses_a2a,{gpu},8,{cell},bf16,serial,1000").iloc[0]
    workload = {"kind": "attention_a2a", "heads": 32, "head_dim": 128, "tokens": 8192, "policy": "serial", "gpus": 8}
    run = xs.run({"question": "?", "machine": machine, "workload": workload, "trace": "off"})
    assert row.predicted_us == pytest.approx(run.makespan_us, rel=1e-9)
    assert row.approximation == "the policy alone: of All-to-Alls that of O, none of Q, K and V"


def test_what_a_stand_in_includes_is_said(tmp_path):
    cell = '"{""b"":1,""s"":8192,""h"":32,""d"":128,""causal"":false}"'
    row = of_ones_own(tmp_path, ATTENTION_HEADER, f"mine,ulysses_a2a,B200,8,{cell},bf16,serial: A2A + FA4,1000").iloc[0]
    assert row.nearest_variant == "serial: A2A + stock FA4 + A2A"
    assert "with an All-to-All of Q, K, V before attention" in row.approximation


def test_a_gpu_may_be_described_by_a_machine_of_ones_own(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: hgx-b200\ndescription: half as wide\ninterconnect:\n  drain_rate: {value: 358 GB/s, source: mine}\n"
    )
    row = "mine,B200,8,4096,2048,256,6,64,fp8_e4m3,fp4_e2m1,bf16,expert_wave,100"
    [plain] = of_ones_own(tmp_path, HEADER, row).to_dict("records")
    assert main(["published", "--data", str(tmp_path / "own.csv"), "--machine", f"b200={file}", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["rows"]
    assert (found["machine"], found["gpu"]) == (str(file), "B200")
    assert found["predicted_us"] > plain["predicted_us"]
    assert main(["published", "--data", str(tmp_path / "own.csv"), "--machine", f"B300={file}"]) == 2
    assert "machine = 'B300': has no row (allowed: B200)" in capsys.readouterr().err


def test_a_large_call_whose_ranks_differ_is_simulated_on_all_of_them(monkeypatch, tmp_path):
    """A mirror image cannot stand for them, as with 4 experts on each of 72 ranks."""
    monkeypatch.setattr(predict, "MOST_ROWS_OF_ALL_RANKS", 1000)
    rows = of_ones_own(tmp_path, HEADER, "mine,GB200,36,4096,2048,144,4,64,fp8_e4m3,fp4_e2m1,bf16,expert_wave,100")
    assert rows.skipped.isna().all() and rows.detail.tolist() == [""]


# --- all of it


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-b200", "hgx-h200", "hgx-h20", "hgx-h100", "gb300"])
def test_the_fit_finds_the_numbers_of_the_machine_file(name, tmp_path):
    found = fit_machine(name)
    numbers = dict(load_machine(name).numbers())
    for number in found.fit.numbers:
        value = numbers[number.parameter.name].value
        in_unit = {"us": 1e6, "GB/s": 1e6, "": 1}[number.parameter.unit]
        assert number.low <= value / in_unit <= number.high
        assert not number.flag
    write_fit(found, tmp_path / "refitted.yaml")
    refitted = dict(load_machine(tmp_path / "refitted.yaml").numbers())
    assert all(refitted[free.name].interval for free in free_numbers(name))


@pytest.mark.slow
def test_all_published_rows():
    done = xs.published()
    assert done.rows.error_pct.notna().sum() == done.rows.predicted_us.notna().sum() > 1000
    goals = done.targets.set_index("target")
    assert goals.loc["DeepGEMM rows predicted, %", "met"]
    own = done.summary[done.summary.family == "deepgemm"]
    assert (own.mae_pct < own.baseline_mae_pct).all()
    assert done.baseline["mae_pct"] > error_numbers(done.rows[done.rows.judged].error_pct)["mae_pct"]
    assert len(Published(done.rows).printed()) > 5
