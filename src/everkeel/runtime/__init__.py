"""What policies stand on: states and policies, clock, classification, backoff, deadline, events, registry, weaver."""
