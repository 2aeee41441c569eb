"""What PostgreSQL says about itself: its clock, and the transactions for which it must keep dead rows."""

from __future__ import annotations

from everkeel.engines.sql.statement import Operation, Statement
from everkeel.engines.vitals import Vitals, certain_skew
from everkeel.runtime.clock import Clock

# A transaction holds back the cleaning up by what it may still see (xmin) and by what it has written (xid). Any role
# may read both; when a transaction began, only its own role and members of pg_read_all_stats. Standbys that ask for
# it, replication slots and prepared transactions hold back as well. Vacuum does not hold back vacuum: its workers are
# those without a user (`backend_type` is null for who may not see others).
_VITALS = """
WITH others AS (
    SELECT greatest(age(backend_xmin), age(backend_xid)) AS age, xact_start FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (datname IS NULL OR datname = current_database()) AND usesysid IS NOT NULL
), held AS (
    SELECT age FROM others
    UNION ALL SELECT age(xmin) FROM pg_replication_slots
    UNION ALL SELECT age(transaction) FROM pg_prepared_xacts WHERE database = current_database()
)
SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision),
    (SELECT CAST(extract(epoch FROM clock_timestamp() - min(xact_start)) AS double precision) FROM others),
    (SELECT max(age) FROM held)"""


def vitals(clock: Clock) -> Operation[Vitals]:
    """All of it in one statement. The time is taken right before and after: waiting for a connection does not count."""
    before = clock.time()
    ((theirs, oldest, age),) = yield Statement(_VITALS)
    skew = certain_skew(float(theirs), before, clock.time())
    return Vitals(clock_skew=skew, oldest_transaction=max(0.0, float(oldest or 0.0)), xmin_age=int(age or 0))
