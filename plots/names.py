"""Names of kernels as figures and tables hold them: mangled C++ and generated ones are hundreds of characters long."""

from __future__ import annotations

LONGEST = 48


def shortened(name: str, longest: int = LONGEST) -> str:
    """`name`, or its beginning and end with dots between them. The end is kept: it often is what tells two names apart."""
    end = longest // 3
    return name if len(name) <= longest else f"{name[: longest - end - 3]}...{name[-end:]}"
