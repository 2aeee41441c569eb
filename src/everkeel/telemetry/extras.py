"""What is said when the library of an integration is not there."""

from __future__ import annotations


def missing(what: str, library: str, extra: str) -> ImportError:
    """An error that names the extra to install."""
    return ImportError(f"{what} needs {library}: pip install everkeel[{extra}]")
