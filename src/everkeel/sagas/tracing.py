"""A span for every try of a step, linked to the one before it of the same saga."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from everkeel.runtime import tracing
from everkeel.sagas.context import Context


def stepping(context: Context[Any, Any]) -> AbstractContextManager[tracing.Told]:
    """The span in which an action or a compensation runs."""
    if tracing.opener is None:
        return tracing.UNTRACED
    attributes = {
        "everkeel.saga.type": context.saga_type,
        "everkeel.saga.id": context.saga_id,
        "everkeel.saga.step": context.step,
        "everkeel.saga.undo": context.undo,
        "everkeel.attempt": context.attempt,
    }
    what = f"undo {context.step}" if context.undo else context.step
    return tracing.span("step", f"{context.saga_type} {what}", attributes, chain=context.saga_id)
