"""One service of the shop, in a process that was forked with everything imported. Run by `shop_campaign.py`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

from everkeel.demo.shop.running import main
from everkeel.testing.crashing import VARIABLE


def outlive_nobody() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run(name: str, world: str, point: str, log: str) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(target, stream)
    threading.Thread(target=outlive_nobody, daemon=True).start()
    os.environ[VARIABLE] = point
    try:
        main([name, world])
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


run(**globals()["TOLD"])
