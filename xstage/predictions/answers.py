"""Predictions of many cases, in worker processes: each with its machine, and with what refused it instead of an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..sim.errors import XstageError
from ..workers import each_on_workers

if TYPE_CHECKING:
    from ..sim.machine import Machine
    from ..sim.predict import Case


class Answer(NamedTuple):
    """Predicted time and roofline in us, or why there is none."""

    predicted_us: float | None
    baseline_us: float | None
    reason: str = ""


def answer(machine: Machine, case: Case) -> Answer:
    """The prediction and its null baseline, which a part does not have.

    What the machine or the schedule refuses becomes the reason.
    """
    from ..sim.predict import PartCase, predict_us, roofline_us

    try:
        whole = not isinstance(case, PartCase)
        return Answer(predict_us(machine, case), roofline_us(machine, case) if whole else None)
    except XstageError as error:
        return Answer(None, None, str(error))


def answers(asked: Sequence[tuple[Machine, Case]], workers: int) -> Iterator[tuple[int, Answer]]:
    """Position and answer of each question, as they come. With one worker everything runs in this process.

    A worker gets neighbours that share a routing one after the other: it draws the routing once.
    """
    return each_on_workers(_answer, asked, workers, together=_routing_or_itself)


def drawn_for(case: Case) -> tuple[int, ...] | None:
    """What the routing of a case is drawn for; None for a case without one."""
    from ..sim.predict import routing_key
    from ..sim.schedules.megamoe import MegaMoe

    return routing_key(case.shape) if isinstance(case.shape, MegaMoe) else None


def _answer(question: tuple[Machine, Case]) -> Answer:
    return answer(*question)


def _routing_or_itself(question: tuple[Machine, Case]) -> object:
    return drawn_for(question[1]) or question
