"""The control plane: REST, live streams and an audit log over the policies of a running service.

    pip install everkeel[starlette]

`ControlPlane` is an ASGI application. `Section`, `Endpoint` and their kin are how other parts join it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from everkeel.control.access import Principal as Principal
from everkeel.control.access import Role as Role
from everkeel.control.access import Token as Token
from everkeel.control.problems import ProblemError as ProblemError
from everkeel.control.readiness import Readiness as Readiness
from everkeel.control.section import Answer as Answer
from everkeel.control.section import Endpoint as Endpoint
from everkeel.control.section import Exchange as Exchange
from everkeel.control.section import Parameter as Parameter
from everkeel.control.section import Section as Section

if TYPE_CHECKING:
    from everkeel.control.plane import ControlPlane as ControlPlane
    from everkeel.control.sections.dead_letters import dead_letters_section as dead_letters_section
    from everkeel.control.sections.inbox import inbox_section as inbox_section
    from everkeel.control.sections.outbox import outbox_section as outbox_section
    from everkeel.control.sections.sagas import sagas_section as sagas_section

__all__ = [
    "Answer",
    "ControlPlane",
    "Endpoint",
    "Exchange",
    "Parameter",
    "Principal",
    "ProblemError",
    "Readiness",
    "Role",
    "Section",
    "Token",
    "dead_letters_section",
    "inbox_section",
    "outbox_section",
    "sagas_section",
]

_HOMES = {
    "ControlPlane": "plane",  # needs Starlette, which the command line does not
    "dead_letters_section": "sections.dead_letters",
    "inbox_section": "sections.inbox",
    "outbox_section": "sections.outbox",
    "sagas_section": "sections.sagas",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
