"""Business transactions over several services: steps that are done in order and undone in reverse.

`Saga` is the definition, `Orchestrator` runs it as a durable state machine, `Choreography` follows services that react
to each other's events. Both are kept in one store, seen and acted on with `Sagas`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.engines.sagas import SagaFilter, SagaState, SagaTypeStats
    from everkeel.sagas.choreography import Choreography, Reaction
    from everkeel.sagas.coding import Codec
    from everkeel.sagas.compensations import Compensation, CompensationRegistry
    from everkeel.sagas.context import Context
    from everkeel.sagas.definition import Saga
    from everkeel.sagas.handle import Handle
    from everkeel.sagas.orchestrator import Orchestrator
    from everkeel.sagas.record import Entry, StepRecord, StepStatus
    from everkeel.sagas.service import Sagas
    from everkeel.sagas.steps import NOTHING, Parallel, Step
    from everkeel.sagas.view import SagaPage, SagaSummary, SagaView

__all__ = [
    "NOTHING", "Choreography", "Codec", "Compensation", "CompensationRegistry", "Context", "Entry", "Handle",
    "Orchestrator", "Parallel", "Reaction", "Saga", "SagaFilter", "SagaPage", "SagaState", "SagaSummary",
    "SagaTypeStats", "SagaView", "Sagas", "Step", "StepRecord", "StepStatus",
]  # fmt: skip

_HOMES = {
    "everkeel.engines.sagas": ("SagaFilter", "SagaState", "SagaTypeStats"),
    "everkeel.sagas.choreography": ("Choreography", "Reaction"),
    "everkeel.sagas.coding": ("Codec",),
    "everkeel.sagas.compensations": ("Compensation", "CompensationRegistry"),
    "everkeel.sagas.context": ("Context",),
    "everkeel.sagas.definition": ("Saga",),
    "everkeel.sagas.handle": ("Handle",),
    "everkeel.sagas.orchestrator": ("Orchestrator",),
    "everkeel.sagas.record": ("Entry", "StepRecord", "StepStatus"),
    "everkeel.sagas.service": ("Sagas",),
    "everkeel.sagas.steps": ("NOTHING", "Parallel", "Step"),
    "everkeel.sagas.view": ("SagaPage", "SagaSummary", "SagaView"),
}


def __getattr__(name: str) -> object:
    """Imported when first used."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(module), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
