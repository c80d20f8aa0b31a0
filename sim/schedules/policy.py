"""What every policy of a fused kernel checks of itself, and with the machine that it is to run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from ..machine import Machine


def check_policy(policy: Any, names: Sequence[str], least: Mapping[str, int]) -> None:
    """Refuse an unknown `name`, `reserved_sms` where the name does not reserve any, and fields (if given) below `least`."""
    if policy.name not in names:
        raise InputError("is unknown", field="policy", value=policy.name, allowed=names)
    if (policy.reserved_sms > 0) != (policy.name == "reserved_sms"):
        allowed = "1 or more" if policy.name == "reserved_sms" else f"0 where the policy is {policy.name}"
        raise InputError("does not fit the policy", field="reserved_sms", value=policy.reserved_sms, allowed=allowed)
    for field, lowest in least.items():
        value = getattr(policy, field)
        if value is not None and value < lowest:
            raise InputError("is too small", field=field, value=value, allowed=f"{lowest} or more")


def check_fits(machine: Machine, ranks: int, reserved_sms: int) -> None:
    """Refuse more `ranks` than the machine has GPUs, and a policy that reserves all SMs of a GPU."""
    if ranks > machine.gpus:
        raise InputError("more than GPUs", field="ranks", value=ranks, allowed=f"1 to {machine.gpus}")
    if reserved_sms >= machine.sms:
        allowed = f"1 to {machine.sms - 1}"
        raise InputError("leaves no SM to compute", field="reserved_sms", value=reserved_sms, allowed=allowed)
