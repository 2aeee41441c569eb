"""The control plane: REST, live streams and an audit log over the policies of a running service.

    pip install everkeel[starlette]

`ControlPlane` is an ASGI application. `Section`, `Endpoint` and their kin are how other parts join it.
"""

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
]


def __getattr__(name: str) -> object:
    if name == "ControlPlane":  # needs Starlette, which the command line does not
        from everkeel.control.plane import ControlPlane

        globals()[name] = ControlPlane
        return ControlPlane
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
