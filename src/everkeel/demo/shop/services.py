"""The services by their names."""

from __future__ import annotations

from everkeel.demo.shop.neighbours import Inventory, Payments
from everkeel.demo.shop.orders import Orders
from everkeel.demo.shop.running import Running

SERVICE_CLASSES: dict[str, type[Running]] = {"inventory": Inventory, "payments": Payments, "orders": Orders}
