"""What the transports, adapters and middlewares for HTTP clients are made of; `everkeel.http.httpx2` and its siblings
are what applications import."""
