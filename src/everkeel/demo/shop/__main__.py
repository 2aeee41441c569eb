"""One service of the shop, in a process of its own."""

import sys

from everkeel.demo.shop.running import main

main(sys.argv[1:])
