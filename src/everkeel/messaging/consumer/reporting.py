"""What a consumer tells: logs that a person on call can act on, and events for whoever listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from everkeel.engines.rows import ErrorInfo
from everkeel.messaging.event import Event
from everkeel.runtime import events as hub

if TYPE_CHECKING:
    from everkeel.messaging.consumer.consumer import Consumer
    from everkeel.messaging.consumer.handlers import Handler

log = logging.getLogger("everkeel.consumer")
_SHOWN = 300  # characters of an error in a log line; the dead letter has the rest


def _error(consumer: Consumer, event: Event | None, error: BaseException | None) -> str:
    if error is None:
        return "no error"
    info = ErrorInfo.of(error)
    text = info.text if consumer.dead_letters is None else consumer.dead_letters.redactor.text(info.text, event)
    return f"{info.type}: {text[:_SHOWN]}"


def duplicate(consumer: Consumer, event: Event) -> None:
    """It was handled before."""
    log.debug("consumer %r: %s %r was handled before", consumer.name, event.type, event.id)
    if hub.everywhere:
        from everkeel.events import DuplicateSuppressed

        hub.tell(
            DuplicateSuppressed(policy=consumer.name, policy_type="consumer", event_id=event.id, event_type=event.type),
            (),
        )


def early(consumer: Consumer, event: Event, why: str) -> None:
    """Some with lower numbers are missing."""
    log.debug("consumer %r: %s %r is set aside: %s", consumer.name, event.type, event.id, why)


def redelivered(consumer: Consumer, event: Event, error: Exception, attempt: int, delay: float) -> None:
    """It failed, and comes again."""
    log.info(
        "consumer %r: attempt %d of %s %r failed, the next one in %.1f s: %s",
        consumer.name, attempt, event.type, event.id, delay, _error(consumer, event, error),
    )  # fmt: skip


def paused(consumer: Consumer, handler: Handler, error: Exception, delay: float) -> None:
    """A policy said no: nothing of this handler's is tried for a while."""
    types = ", ".join(handler.types)
    log.warning("consumer %r: pauses %s for %.1f s: %s", consumer.name, types, delay, _error(consumer, None, error))


def lost(consumer: Consumer, event: Event) -> None:
    """Somebody else was given the event while we worked on it."""
    log.warning(
        "consumer %r: lost the claim on %s %r while handling it; what was done in its transaction was rolled back",
        consumer.name, event.type, event.id,
    )  # fmt: skip


def buried(
    consumer: Consumer, event: Event, letter: str, reason: str, error: BaseException | None, attempts: int
) -> None:
    """It is a dead letter now, or waits behind one."""
    level = logging.INFO if reason == "parked" else logging.WARNING
    what = "parked behind a dead letter of its key" if reason == "parked" else f"dead-lettered ({reason})"
    log.log(
        level, "consumer %r: %s %r %s as %s after %d attempts: %s",
        consumer.name, event.type, event.id, what, letter, attempts, _error(consumer, event, error),
        extra={
            "everkeel_event": "dead_lettered", "everkeel_policy": consumer.name, "everkeel_letter": letter,
            "everkeel_reason": reason, "everkeel_event_id": event.id, "everkeel_event_type": event.type,
        },
    )  # fmt: skip
    if hub.everywhere:
        from everkeel.events import DeadLettered

        hub.tell(
            DeadLettered(
                policy=consumer.name, policy_type="consumer", letter=letter, event_id=event.id, event_type=event.type,
                reason=reason, attempts=attempts, error=error, epoch=event.replay_epoch,
            ),
            (),
        )  # fmt: skip


def known(consumer: Consumer, event: Event, letter: str) -> None:
    """Another copy of what is a dead letter already."""
    log.info("consumer %r: %s %r is dead letter %s already", consumer.name, event.type, event.id, letter)


def not_buried(consumer: Consumer, event: Event, reason: str, error: BaseException | None, trouble: Exception) -> None:
    """The dead-letter store itself failed."""
    log.error(
        "consumer %r: %s %r could not be dead-lettered (%s; %s) and stays with the broker: %s",
        consumer.name, event.type, event.id, reason, _error(consumer, event, error), _error(consumer, event, trouble),
    )  # fmt: skip


def no_dead_letters(consumer: Consumer, event: Event, reason: str, error: BaseException | None) -> None:
    """There is no store of dead letters."""
    log.error(
        "consumer %r: %s %r would be dead-lettered (%s; %s) but there is no dead-letter store: it stays with the "
        "broker and comes again; give the consumer an engine",
        consumer.name, event.type, event.id, reason, _error(consumer, event, error),
    )  # fmt: skip


def left_behind(consumer: Consumer, count: int) -> None:
    """They were cancelled, and go on."""
    log.error(
        "consumer %r: %d handlers did not end when they were cancelled; their events come again when their leases end",
        consumer.name, count,
    )  # fmt: skip


def few_connections(consumer: Consumer, most: int) -> None:
    """Transactions of handlers may take all connections there are."""
    log.warning(
        "consumer %r: up to %d handlers hold a transaction at once, and its engine has %d connections: slow ones may "
        "lose their claims; give the engine connections=%d or more, or the consumer a lower concurrency",
        consumer.name, consumer.concurrency, most, consumer.concurrency + 2,
    )  # fmt: skip


def trouble(consumer: Consumer, what: str, error: BaseException) -> None:
    """Something around the handling failed."""
    log.error("consumer %r: %s", consumer.name, what, exc_info=error)
