"""What type checkers make of `everkeel.config`."""

from collections.abc import Callable
from pathlib import Path
from typing import assert_type

from everkeel import config, retry
from everkeel.events import SettingChange

loaded = config.load(Path("everkeel.yaml"), env={"EVERKEEL_RETRY__ONE__ATTEMPTS": "5"}, watch=True)
assert_type(loaded, config.Configuration)
assert_type(loaded.version, int)
assert_type(loaded.reload(), tuple[SettingChange, ...])
assert_type(loaded.history(), list[config.Version])
assert_type(config.change("retry", "one", attempts=5), tuple[SettingChange, ...])
assert_type(config.effective(retry()), dict[str, config.Effective])
assert_type(config.check("everkeel.yaml"), list[config.Problem])


@config.pipeline("checkout")
def pay(order: str, *, amount: int = 0) -> bool:
    return True


@config.pipeline("checkout")
async def apay(order: str) -> bool:
    return True


@config.register
def is_pending(answer: object) -> bool:
    return answer == "pending"


@config.register("named")
def named(answer: object) -> bool:
    return True


@config.register
class OutOfStockError(Exception):
    """Known to configuration by its name."""


assert_type(pay("order", amount=5), bool)
pay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
as_function: Callable[[object], bool] = is_pending
as_named: Callable[[object], bool] = named
raised: type[Exception] = OutOfStockError
config.load(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
