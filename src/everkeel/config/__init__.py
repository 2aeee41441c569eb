"""Settings from outside the code: files, the environment, live changes. Nothing here is loaded by `import everkeel`.

    from everkeel import config

    config.load("everkeel.yaml", watch=True)

Weakest first: a policy's default, the code, the file, the environment, live changes. The guide page on configuration
says the rest.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.config.api import change as change
    from everkeel.config.api import check as check
    from everkeel.config.api import current as current
    from everkeel.config.api import effective as effective
    from everkeel.config.api import load as load
    from everkeel.config.configuration import Configuration as Configuration
    from everkeel.config.names import register as register
    from everkeel.config.names import registered as registered
    from everkeel.config.names import unregister as unregister
    from everkeel.config.pipelines import ConfiguredPipeline as ConfiguredPipeline
    from everkeel.config.pipelines import pipeline as pipeline
    from everkeel.config.problems import Problem as Problem
    from everkeel.config.rendering import render as render
    from everkeel.config.schemas import schema as schema
    from everkeel.config.versions import Effective as Effective
    from everkeel.config.versions import Version as Version

__all__ = [
    "Configuration", "ConfiguredPipeline", "Effective", "Problem", "Version", "change", "check", "current", "effective",
    "load", "pipeline", "register", "registered", "render", "schema", "unregister",
]  # fmt: skip

_HOMES = {
    "api": ("change", "check", "current", "effective", "load"),
    "configuration": ("Configuration",),
    "names": ("register", "registered", "unregister"),
    "pipelines": ("ConfiguredPipeline", "pipeline"),
    "problems": ("Problem",),
    "rendering": ("render",),
    "schemas": ("schema",),
    "versions": ("Effective", "Version"),
}


def __getattr__(name: str) -> object:
    """Imported when first used: a test that wants a fresh process pays for none of it."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
