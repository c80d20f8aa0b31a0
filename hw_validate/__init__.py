"""Real hardware: its stage is measured, and Programs that run on it are compared with the simulation.

    calibrate -> a machine -> unseen Programs, simulated with it -> replay on the hardware -> compare

validate                       the whole way, and `Backend`, what it asks of hardware
cpu                            cores of this computer, whose stores fill a finite buffer
cuda                           GPUs
calibrated, validation, again  what is answered
unseen, trains, schedules      the Programs that calibration never saw
compare, near_knee, centre     measured against simulated
readers                        traces that other profilers wrote
"""
