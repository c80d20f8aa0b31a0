"""The model: a schedule as data, engines that run it, and what they tell.

    machine, schedule -> Program -> engine -> Outcome -> Trace -> metrics, roofs, activity, waterfall

program             a schedule as data; program_builder fills it, program_check refuses, program_view shows it, and
                    program_index tells who runs what
schedules           the Programs of burst trains, MegaMoE, attention + All-to-All and tensor-parallel GEMMs
execute             runs a Program; deadlock says why one never ends, granule_counts and layout what is known before
engine_simpy        the reference, with simpy_order, simpy_stage and simpy_tasks
engine_compiled     the same rules for numba; compilation and jit make it ready
outcome, trace      what happened, as arrays and as tables; kept_bytes what stores left on their own GPU
burst_gap           the X-Stage in closed form
machine             what a machine file says, with interconnect; tile_cost what its tiles cost
topology            what a store meets on its way; topologies, routes, path_choice, mirror, shared_gpus and traffic make and
                    describe it
routing, placement  which tokens go to which experts, and where these are; routing_file reads a recorded one, pools has the
                    rows of each rank
layers, blocks      kernels one after another
predict             how long one kernel takes, predict_parts its parts
calibrate           T_iss0, R and Q from timed bursts, calibrated_machine a machine file of them; fit_times other numbers
                    from times of kernels
search, disturb, issue_times
                    what tuning and what-if questions need
checked, quantities, units, errors, files, memory
                    fields with units, refusals, files that appear whole
"""
