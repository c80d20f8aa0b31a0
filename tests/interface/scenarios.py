"""Small scenarios that several files of tests use."""

MEGAMOE = {
    "question": "Which order?",
    "machine": {"base": "hgx-b200", "overrides": {"compute.sms": 16}},
    "workload": {"kind": "megamoe", "gpus": 2, "hidden": 512, "intermediate": 256, "experts": 16, "topk": 2,
                 "tokens": 2048, "policy": "expert_wave"},
    "granule": "8 KiB",
}  # fmt: skip
MEGAMOE_SM90 = {
    "question": "Which order, where math warps multiply and run the epilogue?",
    "machine": {"base": "hgx-h100", "overrides": {"compute.sms": 16}},
    "workload": {"kind": "megamoe", "gpus": 2, "hidden": 1024, "intermediate": 512, "experts": 16, "topk": 2,
                 "tokens": 1024, "numbers": "w8a8", "policy": "expert_wave"},
    "granule": "8 KiB",
}  # fmt: skip
