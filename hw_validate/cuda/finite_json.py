"""Reports as JSON that any reader takes. Needs NumPy alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def as_json(report: Mapping[str, Any]) -> str:
    """With null for what is no number, such as the error of a stall that was not measured: JSON has no NaN and no infinity.

    Numbers of NumPy are numbers; what JSON has nothing for, such as a path, is text.
    """
    return json.dumps(_plain(report), indent=1, default=str, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
