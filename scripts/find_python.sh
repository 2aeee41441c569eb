#!/bin/sh
# Prints the first Python from 3.11 up that really starts (a pyenv shim may be there and not start).
# usage: find_python.sh [python]    with an argument, only that one will do
if [ $# -gt 0 ]; then candidates=$*; else candidates="python3 python3.14 python3.13 python3.12 python3.11 python"; fi
for python in $candidates; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        echo "$python"
        exit 0
    fi
done
echo "everkeel: needs Python 3.11 or newer (tried: $candidates); name one with: make PYTHON=/path/to/python3" >&2
exit 1
