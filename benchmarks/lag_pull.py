"""When does the dispatch pull of the lag kernel end, and what holds it up: its ring, or the egress it shares with stores?

    python benchmarks/lag_pull.py

H100, GLM-5.3-Flash, 8192 tokens, one set of machine parameters, none fitted to these rows. Measured: github.com/sgl-project/
DeepGEMM pull 88 (pull ends at 2671 us with lag 8 and 1102 us with lag 40; wave 4900 us, lag 3565 us for the kernel).
Each cause is taken away alone: a ring that never fills, then an egress without limit.
"""

from __future__ import annotations

import xstage as xs

WIDE_OPEN = {"machine.interconnect.drain_rate": "100000 GB/s"}
MEASURED_US = {8: 2671.0, 40: 1102.0}
NO_LIMIT = 4000  # m-blocks: more than the kernel has


def pull_end_us(lag: int, ring: int | None, **overrides: object) -> tuple[float, float]:
    """End of the last dispatch task, and the makespan, in us."""
    policy = {"name": "lag", "lag": lag} | ({} if ring is None else {"ring_m_blocks": ring})
    run = xs.run("megamoe-lag-h100", overrides={"workload.policy": policy, **overrides})
    spans = run.trace.spans()
    return float(spans.query("phase == 'dispatch'")["end_us"].max()), run.makespan_us


def main() -> None:
    print("lag  ring m-blocks  pull ends us  measured us  error  never-full ring us  unlimited egress us  kernel us")
    for lag, measured in MEASURED_US.items():
        ring = 8 * (lag + 4) + 4
        end, makespan = pull_end_us(lag, None)
        no_ring, _ = pull_end_us(lag, NO_LIMIT)
        no_egress, _ = pull_end_us(lag, None, **WIDE_OPEN)
        error = 100 * (end / measured - 1)
        row = f"{lag:>3}  {ring:>13}  {end:>12.0f}  {measured:>11.0f}  {error:>+4.0f} %"
        print(f"{row}  {no_ring:>18.0f}  {no_egress:>19.0f}  {makespan:>9.0f}")


if __name__ == "__main__":
    main()
