"""Schedules as Programs: each `build(machine, shape, policy)` is a pure function.

burst_train            the microbenchmark of the X-Stage
megamoe                expert-parallel dispatch, two GEMMs and combine; megamoe_rules and megamoe_rules_sm90 have what the
                       public kernels choose, megamoe_counts the FLOPs
attention_a2a          FlashAttention with the All-to-All of Ulysses
tensor_parallel        GEMMs with their collective
launch, policy, op_variants, size_limit
                       what they share: starts of kernels, checks of policies and of sizes, runs of ops in many variants
"""
