"""Every test here begins without configuration and leaves none behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everkeel.errors import InvalidConfigurationError


@pytest.fixture(autouse=True)
def _fresh(fresh_everkeel: object) -> None:
    return


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of configuration."""

    def write(text: str, name: str = "everkeel.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def refused() -> Callable[..., list[str]]:
    """What a configuration is refused for, as lines."""

    def load(source: object, env: dict[str, str] | None = None) -> list[str]:
        from everkeel import config

        with pytest.raises(InvalidConfigurationError) as caught:
            config.load(source, env=env or {})  # type: ignore[arg-type]
        return [str(problem) for problem in caught.value.problems]

    return load
