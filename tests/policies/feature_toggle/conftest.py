"""Known answers that may never change."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def known_places() -> dict[tuple[str, object], float]:
    """Salt and key, and their place between 0 and 1. A change here switches features for people in production."""
    return {
        ("search", "alice"): 0.09651354722225447,
        ("search", "bob"): 0.01001652547135623,
        ("search", ""): 0.09664782840920394,
        ("search", "ünïcödé"): 0.5536011839357248,
        ("search", 7): 0.5587021703033935,
        ("search", "7"): 0.5587021703033935,
        ("search", -1): 0.8510264579703142,
        ("search", b"\xff\x00"): 0.7949615572017217,
        ("search", ("acme", 7)): 0.7938896436657612,
        ("checkout", "alice"): 0.9572243139950034,
        ("", "alice"): 0.0716225380658384,
    }


@pytest.fixture
def user_of() -> Callable[[str], str]:
    """The key function most tests use."""
    return lambda user: user
