"""The orders that nobody orchestrates: which event follows which, and which one undoes which.

`OrderPlaced` makes the inventory reserve, `StockReserved` makes the payments charge, `PaymentTaken` makes the orders
service confirm. Nobody carries this list out: services mark what they say with their place in it, and the orders
service follows what is said, to turn back when somebody refuses or time is over, and to know whom to ask then.
"""

from __future__ import annotations

from everkeel.demo.shop.world import TOPIC
from everkeel.sagas import Choreography, CompensationRegistry, Reaction

DEADLINE = 8.0
"""Seconds an order may take, in either style, before it is given up."""

# Services are killed for show here, so nobody gives up on them. Not sooner, or those who are late have even more to do.
SOON, OFTEN = 15.0, 30

CHOREOGRAPHY = Choreography(
    "fulfilment-by-events",
    Reaction("take", done="OrderTaken", compensation="CancelOrder", undone="OrderCancelled", by="orders",
             confirm_within=SOON, undo_attempts=OFTEN),
    Reaction("reserve", done="StockReserved", rejected="StockRefused", compensation="ReleaseStock",
             undone="StockReleased", by="inventory", confirm_within=SOON, undo_attempts=OFTEN),
    Reaction("charge", done="PaymentTaken", rejected="PaymentRefused", compensation="RefundPayment",
             undone="PaymentReturned", by="payments", confirm_within=SOON, undo_attempts=OFTEN),
    Reaction("confirm", done="OrderConfirmed", by="orders", pivot=True),
    starts="OrderPlaced", deadline=DEADLINE, topic=TOPIC, source="/orders",
)  # fmt: skip

COMPENSATIONS = CompensationRegistry(CHOREOGRAPHY)
"""What undoes what, and who does it: `print(COMPENSATIONS.markdown())`."""
