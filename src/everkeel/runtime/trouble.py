"""Where errors of user code go that must not reach the caller: predicates, listeners and hooks that raise."""

from __future__ import annotations


def report(what: str, error: BaseException) -> None:
    """Log it: the call in progress goes on as if nothing had happened."""
    import logging  # 5 ms of import that a process without trouble need not pay

    logging.getLogger("everkeel").error("%s", what, exc_info=error)


def warn(what: str, *values: object) -> None:
    """Log something an operator should know."""
    import logging

    logging.getLogger("everkeel").warning(what, *values)
