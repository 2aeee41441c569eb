"""`python -m everkeel.demo`"""

import sys

from everkeel.demo.cli import main

sys.exit(main())
