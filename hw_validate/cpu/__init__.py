"""The CPU backend: cores store past their caches, which fills a finite buffer as stores to a peer fill an SM's stage.

backend          calibrates, draws Programs and replays them
architecture     which processors, and their instructions
lane             all that numba compiles: `run_lane` does a list of steps, `run_core` the lanes of a Program
bench            cores, memory (buffers) and a clock made ready; cores has the threads, yardstick tells if one was disturbed
microbenchmark   the bursts of the calibration; shared_stage what several cores share of the stage
access, op_costs, bookkeeping
                 what a core needs beside the law: loads, own stores, the ops themselves
onto_cores       a Program of several ranks on cores; tables has its arrays for `run_core`, schedules draws some
lower            a Program of one core a lane as lists of steps for `run_lane`
replay           runs both kinds, and gives op tables
"""
