"""What was given up on: kept whole, looked at, replayed, discarded."""

from everkeel.engines.letters import AuditRow, LetterFilter, Newer, Status
from everkeel.messaging.dead_letters.letter import DeadLetter, Overtaken, Page, ReplayPlan, ReplayReport
from everkeel.messaging.dead_letters.service import DeadLetters

__all__ = [
    "AuditRow", "DeadLetter", "DeadLetters", "LetterFilter", "Newer", "Overtaken", "Page", "ReplayPlan", "ReplayReport",
    "Status",
]  # fmt: skip
