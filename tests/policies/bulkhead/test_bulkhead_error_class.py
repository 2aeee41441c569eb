"""The error of a full bulkhead may be of a class of one's own."""

from __future__ import annotations

import pytest

from everkeel import BulkheadFullError, ConfigError, bulkhead


class NoRoomError(BulkheadFullError):
    pass


def test_it_raises_that_class(clock):
    orders = bulkhead(1, "orders", full_error=NoRoomError)
    with orders:
        with pytest.raises(NoRoomError) as raised:
            orders.call(int)
    assert type(raised.value) is NoRoomError
    assert raised.value.running == 1


def test_another_class_is_refused(clock):
    with pytest.raises(ConfigError, match="full_error must be BulkheadFullError or a class derived from it"):
        bulkhead(1, "orders", full_error=ValueError)
