"""PostgreSQL: the engine for services on several machines, inside the caller's own transaction."""
