from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def crash_campaign():
    """The module that runs a shop, kills its processes and counts what became of every order."""
    spec = importlib.util.spec_from_file_location("crash_campaign", Path(__file__).with_name("campaign.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["crash_campaign"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
