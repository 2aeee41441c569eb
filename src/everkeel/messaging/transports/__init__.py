"""How events travel: in memory, through a SQLite file, over Redis Streams, or by a function of yours."""
