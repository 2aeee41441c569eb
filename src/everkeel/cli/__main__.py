"""`python -m everkeel.cli`"""

import sys

from everkeel.cli import main

sys.exit(main())
