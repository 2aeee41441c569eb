"""What policies, events and sagas do, for those who watch: log records, Prometheus, OpenTelemetry.

Nothing here is loaded by `import everkeel`, and a service that installs none of it pays for none of it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.telemetry.logs import EventLog as EventLog
    from everkeel.telemetry.logs import log_events as log_events
    from everkeel.telemetry.opentelemetry import EverkeelInstrumentor as EverkeelInstrumentor
    from everkeel.telemetry.prometheus import PolicyCollector as PolicyCollector
    from everkeel.telemetry.prometheus import metrics_app as metrics_app
    from everkeel.telemetry.stores import StoreMetrics as StoreMetrics

__all__ = ["EventLog", "EverkeelInstrumentor", "PolicyCollector", "StoreMetrics", "log_events", "metrics_app"]

_HOMES = {
    "logs": ("EventLog", "log_events"),
    "opentelemetry": ("EverkeelInstrumentor",),
    "prometheus": ("PolicyCollector", "metrics_app"),
    "stores": ("StoreMetrics",),
}


def __getattr__(name: str) -> object:
    """Imported when first used: each integration needs its own library."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
