"""What was given up on: kept whole, looked at, replayed, discarded."""

from everkeel.engines.letters import AuditRow, LetterFilter, Status
from everkeel.messaging.dead_letters.letter import DeadLetter, Page, ReplayPlan, ReplayReport
from everkeel.messaging.dead_letters.service import DeadLetters

__all__ = ["AuditRow", "DeadLetter", "DeadLetters", "LetterFilter", "Page", "ReplayPlan", "ReplayReport", "Status"]
