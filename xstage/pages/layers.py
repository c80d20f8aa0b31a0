"""The page of `xstage layer`: one block of a model under several policies, kernel by kernel."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..plots.html_page import Page, Picture, Section, Table, facts, table_of


def layer_page(answer: dict[str, Any]) -> Page:
    """The page of an answer of `xstage layer --json`."""
    from ..plots.layer_figures import layer_figure

    ran = [row for row in answer["policies"] if row["error"] is None]
    failed = [(row["policy"], row["error"]) for row in answer["policies"] if row["error"] is not None]
    policies = pd.DataFrame(
        [{name: value for name, value in row.items() if name not in ("kernels", "error")} for row in ran]
    )
    kernels = pd.DataFrame([{"policy": row["policy"], **kernel} for row in ran for kernel in row["kernels"]])
    tokens = f"{answer['tokens']} tokens" + (" of each rank" if answer.get("tokens_of") == "rank" else "")
    sections, lead = [], "None of the policies could run."
    if ran:
        best = min(ran, key=lambda row: row["makespan_us"])
        lead = (
            f"{best['policy']} is fastest with {best['makespan_us']:.1f} µs, {best['speedup']:.3f} times as fast as "
            f"{answer['baseline']}; {best['exposed_pct']:.1f} % of it is communication that nothing hides."
        )
        setting = f"{answer['model']}, {tokens}, on {answer['gpus']} GPUs of {answer['machine']}"
        shown = Picture(layer_figure(kernels, setting), "Kernels one after the other, one row per policy.")
        sections = [
            Section("Policies", [*answer.get("warnings", []), shown, table_of("", policies)]),
            Section("Kernels", [table_of("", kernels)], folded=len(kernels) > 20),
        ]
    if failed:
        sections.append(Section("What cannot run", [Table("", ("policy", "why"), failed)]))
    asked = ("model", "machine", "gpus", "tokens", "tokens_of", "expert_numbers", "baseline")
    about = {name: answer[name] for name in asked if name in answer}
    sections.append(Section("The block", [facts("", about)]))
    return Page(f"One block of {answer['model']} on {answer['machine']}", "xstage layer", lead, sections)
