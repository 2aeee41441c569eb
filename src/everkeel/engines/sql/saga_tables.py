"""The table of sagas, and what says in SQL which of them somebody looks for."""

from __future__ import annotations

from typing import Any

from everkeel.engines.sagas import STOPPED, TERMINAL, SagaFilter, SagaState
from everkeel.engines.sql.dialect import Dialect

ENDED = ", ".join(f"'{state.value}'" for state in sorted(TERMINAL))
"""The final states, as SQL lists them."""
UNSETTLED = "s.state = 'compensated' AND s.due_at IS NULL AND s.step IS NOT NULL"
"""`SagaRow.unsettled` of a row `s`."""
_STOPPED = ", ".join(f"'{state.value}'" for state in sorted(STOPPED))
_MAY_WAIT = "{0}state IN (" + _STOPPED + ") OR ({0}state = 'compensated' AND {0}due_at IS NULL)"
"""What an index can find of those that wait for an operator. Not their step: it changes all the time, and a column
that an index looks at makes every one of these changes dearer."""
_ATTENTION = f"(({_MAY_WAIT.format('s.')}) AND (s.state <> 'compensated' OR s.step IS NOT NULL))"


def tables(moment: str) -> tuple[str, ...]:
    """The table and its indexes."""
    return (
        f"""
CREATE TABLE everkeel_sagas (
    id text PRIMARY KEY,
    type text NOT NULL,
    version integer NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    cause text,
    step text,
    revision integer NOT NULL,
    correlation_id text,
    document text NOT NULL,
    timed_out integer NOT NULL,
    owner text,
    created_at {moment} NOT NULL,
    updated_at {moment} NOT NULL,
    deadline_at {moment},
    due_at {moment},
    ended_at {moment}
)""",
        "CREATE INDEX everkeel_sagas_due ON everkeel_sagas (due_at) WHERE due_at IS NOT NULL",
        "CREATE INDEX everkeel_sagas_list ON everkeel_sagas (created_at, id)",
        f"CREATE INDEX everkeel_sagas_active ON everkeel_sagas (type, state) WHERE state NOT IN ({ENDED})",
        "CREATE INDEX everkeel_sagas_ended ON everkeel_sagas (ended_at) WHERE ended_at IS NOT NULL",
        "CREATE INDEX everkeel_sagas_correlation ON everkeel_sagas (correlation_id) WHERE correlation_id IS NOT NULL",
    )


POSTGRES_TABLES = (
    *tables("timestamptz"),
    "ALTER TABLE everkeel_sagas SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01)",
)
SQLITE_TABLES = tables("REAL")
ATTENTION_INDEX = (
    f"CREATE INDEX everkeel_sagas_attention ON everkeel_sagas (created_at, id) WHERE {_MAY_WAIT.format('')}",
)


def conditions(wanted: SagaFilter, dialect: Dialect) -> tuple[list[str], dict[str, Any]]:
    """What a filter asks of a row `s`, and the values it names."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    for name, value in (
        ("type", wanted.type),
        ("kind", wanted.kind),
        ("cause", wanted.cause),
        ("correlation_id", wanted.correlation),
    ):
        if value is not None:
            parts.append(f"s.{name} = CAST(:{name} AS text)")
            values[name] = value
    if wanted.state is not None:
        listed = ", ".join(f"'{SagaState(state).value}'" for state in wanted.state) or "NULL"
        parts.append(f"s.state IN ({listed})")
    if wanted.active is not None:
        parts.append(f"s.state {'NOT ' if wanted.active else ''}IN ({ENDED})")
    if wanted.timed_out is not None:
        parts.append(f"s.timed_out = {int(wanted.timed_out)}")
    if wanted.attention is not None:
        parts.append(_ATTENTION if wanted.attention else f"NOT {_ATTENTION}")
    if wanted.step is not None:
        # No LIKE: a step's name may have characters that mean something there.
        text = "(',' || coalesce(s.step, '') || ',')"
        part = "CAST(:step AS text)"
        cut = f"replace({text}, {part}, '')"
        parts.append(f"{cut} <> {text}")
        values["step"] = f",{wanted.step},"
    for name, comparison, bound in (("since", ">=", wanted.since), ("until", "<", wanted.until)):
        if bound is not None:
            moment = dialect.moment.format(f"CAST(:{name} AS double precision)")
            parts.append(f"s.created_at {comparison} {moment}")
            values[name] = float(bound)
    if wanted.older_than is not None:
        parts.append(f"s.created_at <= {dialect.later.format('CAST(:ago AS double precision)')}")
        values["ago"] = -float(wanted.older_than)
    return parts, values
