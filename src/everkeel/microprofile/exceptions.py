"""The exceptions of the standard, by its names.

    FaultToleranceException                 the root
    ├── TimeoutException                    no result in time (also a TimeoutError)
    ├── CircuitBreakerOpenException         the circuit is open, or half open with its trials under way
    ├── BulkheadException                   no place free, nor in the queue
    └── FaultToleranceDefinitionException   an annotation or its configuration is wrong; raised before any call

They are Everkeel errors too, so that whoever handles `EverkeelError` handles these.
"""

from __future__ import annotations

from everkeel.errors import EverkeelError


class FaultToleranceException(EverkeelError):  # noqa: N818 - the standard's name
    """The root of what the MicroProfile face raises on its own behalf."""


class TimeoutException(FaultToleranceException, TimeoutError):  # noqa: N818 - the standard's name
    """The execution took longer than its `Timeout` allows."""


class CircuitBreakerOpenException(FaultToleranceException):
    """The circuit breaker prevented the call."""


class BulkheadException(FaultToleranceException):
    """The bulkhead had no place for the call."""


class FaultToleranceDefinitionException(FaultToleranceException):
    """An annotation is used wrongly, or a value of it is not allowed; raised when that can first be known."""
