"""`python -m everkeel.demo.bad_day`"""

import sys

from everkeel.demo.bad_day.cli import main

sys.exit(main())
