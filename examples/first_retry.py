"""The smallest use: try again when a connection fails, and see what happened when it keeps failing.

python examples/first_retry.py
"""

from everkeel import explain, exponential, retry

failures = iter([ConnectionError("connection reset"), ConnectionError("connection reset")])


@retry(on=ConnectionError, attempts=3, backoff=exponential(0.1))
def weather(city: str) -> str:
    """Stands for a call over the network that fails twice and then answers."""
    print(f"  asking for {city}")
    for failure in failures:
        raise failure
    return "12 degrees, rain"


@retry("news", on=ConnectionError, backoff=0.05)
def news() -> str:
    """Stands for a call over the network that never answers."""
    raise ConnectionError("no route to host")


def main() -> None:
    """Both."""
    print("A service that fails twice:")
    print("  got:", weather("Bergen"))

    print("A service that is gone. The error that leaves is the last one of your own, with a record of what was tried:")
    try:
        news()
    except ConnectionError as error:
        print(f"  {type(error).__name__}: {error}")
        for line in str(explain(error)).splitlines():
            print(f"    {line}")


if __name__ == "__main__":
    main()
