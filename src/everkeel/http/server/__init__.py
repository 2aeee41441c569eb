"""What stands in front of a service: plain ASGI middlewares, for any framework that speaks it.

- `asgi`: the protocol's types, and reading a request's headers
- `addresses`: whose request it is behind trusted proxies; pure
- `keys`: whose limit it counts against: by address, API key, user, route
- `templates`: which entry of a table of routes a request belongs to; pure
- `problems`: what a rejected caller is told (RFC 9457), and `refusing`: telling it, over HTTP or a WebSocket
- `rate_limits`, `standing`: the rate limit middleware, and its response headers
- `concurrency`, `strain`: adaptive concurrency with priorities, and how hard-pressed that says we are
- `deadlines`: the time a caller is willing to wait
- `idempotency`, `responses`: the same request twice, and the response that is kept
- `listening`: noticing that a caller has hung up while it waits in line
- `errors`, `handlers`: rejections that left the application become problem documents
- `setup`: all of it in one line
"""
