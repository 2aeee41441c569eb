"""What was already handled, in memory, with transactions of the memory engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.errors import ConfigError
from everkeel.idempotency import core
from everkeel.idempotency.core import LEASE, RETAIN
from everkeel.idempotency.memory import MemoryIdempotencyStore, MemoryRecords
from everkeel.idempotency.records import Begin, Fresh, InProgress, Record, Token
from everkeel.runtime.settings import Seconds

if TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine

_A_MOMENT = 0.1  # how long to wait for a transaction that is about to end


class TransactionalRecords(MemoryRecords):
    """Records that take part in a transaction.

    As in a database, a key whose claim is ended in a transaction belongs to it until the transaction ends: others
    see it in progress, and cannot take it even if its lease runs out meanwhile.
    """

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(clock=engine.clock)
        self._ending: set[str] = set()  # nonces of claims that open transactions are ending

    def begin(
        self,
        scope: str,
        key: str,
        *,
        fingerprint: bytes | None = None,
        lease: Seconds = LEASE,
        retain: Seconds = RETAIN,
        epoch: int = 0,
        tx: Any = None,
    ) -> Begin:
        with self._lock:
            before = self._records.get((scope, key))
        if before is not None and before.nonce in self._ending:
            return InProgress(_A_MOMENT)
        answer = super().begin(scope, key, fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch)
        if tx is not None and isinstance(answer, Fresh):
            token = answer.token
            _ours(tx).on_rollback(lambda: self._restore(token, before))
        return answer

    def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        if tx is None:
            return super().complete(token, result)
        return self._end(token, _ours(tx), lambda: super(TransactionalRecords, self).complete(token, result))

    def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        if tx is None:
            return super().fail(token, refund=refund)
        return self._end(token, _ours(tx), lambda: super(TransactionalRecords, self).fail(token, refund=refund))

    def _end(self, token: Token, tx: MemoryTransaction, act: Any) -> bool:
        with self._lock:
            if not core.holds(self._records.get((token.scope, token.key)), token) or token.nonce in self._ending:
                return False
            self._ending.add(token.nonce)
        tx.on_commit(lambda: self._ending.discard(token.nonce))
        tx.on_commit(act)
        tx.on_rollback(lambda: self._ending.discard(token.nonce))
        return True

    def _restore(self, token: Token, before: Record | None) -> None:
        with self._lock:
            record = self._records.get((token.scope, token.key))
            if record is None or record.nonce != token.nonce:
                return
            if before is None:
                self._drop((token.scope, token.key))
            else:
                self._keep(before)


class MemoryInbox(MemoryIdempotencyStore):
    """An `IdempotencyStore` that lives as long as its process; made by `MemoryEngine.inbox`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.sync: MemoryRecords = TransactionalRecords(engine)


def _ours(tx: object) -> MemoryTransaction:
    if not isinstance(tx, MemoryTransaction):
        raise ConfigError("tx", None, "must come from MemoryEngine.transaction()", type(tx).__qualname__)
    return tx
