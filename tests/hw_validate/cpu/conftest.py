"""These tests run stores on this computer; none of them asserts how long anything takes."""

from xstage.hw_validate.cpu.architecture import UnsupportedProcessorError, detect

try:
    detect()
except UnsupportedProcessorError:  # nothing to run here; test_architecture.py shows that this is said clearly
    collect_ignore = [
        "test_buffers.py", "test_clock.py", "test_lane.py", "test_lower.py", "test_onto_cores.py", "test_replay.py",
        "test_run_core.py", "test_schedules.py", "test_shared_stage.py",
    ]  # fmt: skip
