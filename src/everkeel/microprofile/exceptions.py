"""The exceptions of the standard, by its names.

    FaultToleranceException                 the root
    ├── TimeoutException                    no result in time
    ├── CircuitBreakerOpenException         the circuit is open, or half open with its trials under way
    ├── BulkheadException                   no place free, nor in the queue
    ├── RateLimitException                  called too often (beyond the standard)
    └── FaultToleranceDefinitionException   an annotation or its configuration is wrong; raised before any call

Each of the last five is also the Everkeel error of the same meaning, so that a handler written for one face works for
the other. What the guarded method itself raises is never wrapped in any of them.
"""

from __future__ import annotations

from math import ceil

from everkeel.errors import (
    BulkheadFullError,
    CircuitOpenError,
    ConfigError,
    EverkeelError,
    RateLimitedError,
    TimeoutExceededError,
)


class FaultToleranceException(EverkeelError):  # noqa: N818 - the standard's name
    """The root of what the MicroProfile face raises on its own behalf.

    >>> issubclass(TimeoutException, FaultToleranceException)
    True
    """


class TimeoutException(FaultToleranceException, TimeoutExceededError):  # noqa: N818 - the standard's name
    """The execution took longer than its `Timeout` allows. Also a `TimeoutError`.

    >>> print(TimeoutException("shop.Orders.pay", 0.5))
    timeout 'shop.Orders.pay': no answer within 0.5 s
    """


class CircuitBreakerOpenException(FaultToleranceException, CircuitOpenError):  # noqa: N818 - the standard's name
    """The circuit breaker prevented the call.

    >>> print(CircuitBreakerOpenException("shop.Orders.pay", 3.2, 0.5, 20))
    circuit 'shop.Orders.pay' is open (50% of the last 20 calls failed); next probe in 3.2 s
    """


class BulkheadException(FaultToleranceException, BulkheadFullError):  # noqa: N818 - the standard's name
    """The bulkhead had no place for the call.

    >>> BulkheadException("shop.Orders.pay", None, 10, 10).running
    10
    """


class RateLimitException(FaultToleranceException, RateLimitedError):  # noqa: N818 - the standard's way of naming
    """A `RateLimit` did not let the call pass; `retry_after` says when it could. Beyond the standard.

    >>> print(RateLimitException("shop.Orders.pay", 0.25, 100, 0, None, None, "local"))
    rate limit 'shop.Orders.pay' of 100 reached; try again in 0.25 s
    """

    @property
    def retry_after_millis(self) -> int:
        """The same in whole milliseconds, rounded up."""
        return ceil((self.retry_after or 0.0) * 1000)


class FaultToleranceDefinitionException(FaultToleranceException, ConfigError):  # noqa: N818 - the standard's name
    """An annotation is used wrongly, or a value of it is not allowed; raised when that can first be known.

    >>> print(FaultToleranceDefinitionException("shop.Orders.pay", "Retry.maxRetries", "must be at least -1", "-3"))
    shop.Orders.pay: Retry.maxRetries must be at least -1 (got -3)
    """

    def __str__(self) -> str:
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()
