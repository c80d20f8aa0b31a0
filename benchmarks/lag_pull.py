"""When does the dispatch pull of the lag kernel end, and what holds it up: its ring, or the egress it shares with stores?

    python benchmarks/lag_pull.py

H100, GLM-5.3-Flash, 8192 tokens, one set of machine parameters, none fitted to these rows. Measured: `SOURCE`, as it stands
in scenarios/published/megamoe.csv, for whole kernels and for the end of the pull with two lags.
Each cause is taken away alone: a ring that never fills, then an egress without limit. The last table takes away what the lag
kernel has besides its order.
"""

from __future__ import annotations

from typing import Any

from xstage.scenarios.published import load_published

import xstage as xs

SOURCE = "https://github.com/sgl-project/DeepGEMM/pull/88"
WIDE_OPEN = {"machine.interconnect.drain_rate": "100000 GB/s"}
TOKENS = 8192
KERNELS = {"expert_wave": "sm90_wave_sgl_dev", "lag": "sm90_lag_sgl88"}
PULLS = {8: "sm90_lag8_sgl88", 40: "sm90_lag40_sgl88"}
"""The version that stands in the published table for each policy and lag."""
NO_LIMIT = 4000  # m-blocks: more than the kernel has
WITHOUT: dict[str, dict[str, Any]] = {
    "as it is": {},
    "every row published alone": {"publish_rows": 1},
    "combine after barrier 2": {"early_combine": False},
}


def run(policy: dict[str, Any], **overrides: object) -> tuple[float, float, int]:
    """End of the last dispatch task and the makespan, in us, and the ring in m-blocks."""
    done = xs.run("megamoe-lag-h100", overrides={"workload.policy": policy, **overrides})
    spans = done.trace.spans()
    end = float(spans.query("phase == 'dispatch'")["end_us"].max())
    return end, done.makespan_us, int(done.trace.program.meta["ring_m_blocks"])


def published_us() -> dict[str, float]:
    """The measured time of each version."""
    table = load_published("megamoe")
    rows = table[(table["source_url"] == SOURCE) & (table["tokens_per_rank"] == TOKENS)]
    return dict(zip(rows["version"], rows["time_us"], strict=True))


def error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


def main() -> None:
    times = published_us()
    print("kernel       ring m-blocks  predicted us  measured us  error")
    for name, version in KERNELS.items():
        measured = times[version]
        _, makespan, ring = run({"name": name})
        print(f"{name:<12} {ring:>13}  {makespan:>12.0f}  {measured:>11.0f}  {error(makespan, measured)}")
    print(
        "\nlag  ring m-blocks  pull ends us  measured us  error     never-full ring us  unlimited egress us  kernel us"
    )
    for lag, version in PULLS.items():
        measured = times[version]
        policy: dict[str, Any] = {"name": "lag", "lag": lag}
        end, makespan, ring = run(policy)
        no_ring, _, _ = run(policy | {"ring_m_blocks": NO_LIMIT})
        no_egress, _, _ = run(policy, **WIDE_OPEN)
        row = f"{lag:>3}  {ring:>13}  {end:>12.0f}  {measured:>11.0f}  {error(end, measured):<8}"
        print(f"{row}  {no_ring:>18.0f}  {no_egress:>19.0f}  {makespan:>9.0f}")
    print("\nlag kernel                 pull ends us  kernel us")
    for name, change in WITHOUT.items():
        end, makespan, _ = run({"name": "lag", **change})
        print(f"{name:<26} {end:>12.1f}  {makespan:>9.1f}")


if __name__ == "__main__":
    main()
