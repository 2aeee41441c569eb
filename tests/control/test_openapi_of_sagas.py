"""The sections about events and sagas against the document of a plane that has them."""

from __future__ import annotations

import asyncio

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import allow_header_conformance, ignored_auth, positive_data_acceptance

from everkeel import NotRetryable
from everkeel.control import ControlPlane, Token, dead_letters_section, outbox_section, sagas_section
from everkeel.engines.memory.engine import MemoryEngine
from everkeel.errors import SagaStoppedError
from everkeel.messaging import DeadLetters, Outbox
from everkeel.sagas import NOTHING, Orchestrator, Saga, Step

SECRET = "the-secret-of-the-schema-tests"
ENGINE = MemoryEngine()
LETTERS = DeadLetters(ENGINE)
PLANE = ControlPlane(tokens=[Token("tester", "admin", SECRET)], requests_per_second=1_000_000)
for section in (
    dead_letters_section(LETTERS),
    outbox_section(Outbox(ENGINE)),
    sagas_section(ENGINE, dead_letters=LETTERS),
):
    PLANE.add_section(section)
SCHEMA = schemathesis.openapi.from_dict(PLANE.openapi())
SCHEMA.app = PLANE


def fail(context):
    raise NotRetryable("no")


@pytest.fixture(scope="module")
def _a_blocked_saga():
    """Under the name that the document gives as an example, so that many requests find one."""
    saga = Saga("order", Step("pay", lambda context: 1, fail, undo_attempts=1), Step("ship", fail, NOTHING))

    async def run():
        async with Orchestrator(ENGINE, saga, poll=0.05) as orchestrator:
            with pytest.raises(SagaStoppedError):
                await orchestrator.run(saga, id="payments", timeout=10)

    asyncio.run(run())


@SCHEMA.include(path_regex="^/(sagas|outbox|dlq)").parametrize()
@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
@pytest.mark.usefixtures("_a_blocked_saga")
def test_every_answer_is_what_the_document_says(case):
    headers = {"Authorization": f"Bearer {SECRET}"}
    # An id may have slashes: GET /sagas/x/cancel is the saga "x/cancel", which one path of a document cannot say.
    excluded = [ignored_auth, positive_data_acceptance, allow_header_conformance]
    case.call_and_validate(headers=headers, excluded_checks=excluded)
