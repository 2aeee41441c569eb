"""Putting policies together."""

from everkeel.compose.chain import Pipeline, source, weave

__all__ = ["Pipeline", "source", "weave"]
