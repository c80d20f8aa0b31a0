"""Schedules as Programs: each `build(machine, shape, policy)` is a pure function.

burst_train            the microbenchmark of the X-Stage
megamoe                expert-parallel dispatch, two GEMMs and combine
attention_a2a          FlashAttention with the All-to-All of Ulysses
tensor_parallel        GEMMs with their collective
launch, policy, op_variants, size_limit, store_parts
                       what they share: starts of kernels, checks of policies and of sizes, runs of ops in many variants,
                       STOREs of many bytes
"""
