"""A saga that was started, for those who wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everkeel.engines.sagas import SagaState
from everkeel.errors import SagaCompensatedError, SagaStoppedError
from everkeel.runtime.settings import Seconds
from everkeel.sagas.definition import Saga
from everkeel.sagas.values import typed
from everkeel.sagas.view import SagaView

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator

R = TypeVar("R")


class Handle(Generic[R]):
    """A saga that was started: ask it how it is, wait for its end, cancel it."""

    def __init__(self, host: Orchestrator, saga: Saga[Any, Any, R], id: str, *, created: bool) -> None:
        self._host, self._saga = host, saga
        self.id = id
        self.created = created
        """False: a saga of this id was there already, and this is that one."""

    async def result(self, timeout: Seconds | None = None) -> R:
        """Wait for its end and answer its result.

        Raises `SagaCompensatedError` if it turned back, `SagaStoppedError` if it cannot go on without an operator, and
        `TimeoutError` if it is not over in time: it goes on all the same.
        """
        record = await self._host.wait(self.id, timeout)
        if record.state is SagaState.COMPLETED:
            answer: R = typed(record.result, self._saga.result)
            return answer
        if record.state is SagaState.COMPENSATED:
            raise SagaCompensatedError(record.type, record.id, record.cause, record.failed_step, record.error)
        step = record.current() or record.failed_step
        error = record.steps[step].error if step is not None and step in record.steps else None
        raise SagaStoppedError(record.type, record.id, record.state.value, step, error or record.error)

    async def view(self) -> SagaView:
        """How it is now."""
        return await self._host.sagas.get(self.id)

    async def cancel(self, *, actor: str = "everkeel", reason: str = "") -> SagaView:
        """Turn back."""
        return await self._host.sagas.cancel(self.id, actor=actor, reason=reason)

    def __repr__(self) -> str:
        return f"<Handle of saga {self._saga.name!r} {self.id!r}>"
