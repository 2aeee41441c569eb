"""The relay: claims what waits in the outbox, publishes it, writes down what became of it."""
