#!/bin/sh
# Install the servers the tests use from Debian's (or Ubuntu's) packages. Tests start them on free ports with temporary
# data (see src/everkeel/testing/servers.py): nothing here needs to be running, and nothing is configured.
set -eu

packages="redis-server postgresql pgbouncer chromium fonts-dejavu-core"
wanted=""
for package in $packages; do
    # Any browser of this family will do; Ubuntu's own package of it is a slow detour through snap.
    [ "$package" = chromium ] && { command -v google-chrome || command -v chromium; } >/dev/null && continue
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || wanted="$wanted $package"
done
if [ -z "$wanted" ]; then
    echo "servers: all installed: $packages"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "servers: this machine has no apt-get; install yourself:$wanted" >&2
    exit 1
fi
root=""
[ "$(id -u)" = 0 ] || root="sudo"
# Debian starts what it installs; the tests want none of that running.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ] && [ "$(id -u)" = 0 ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
    trap 'rm -f $policy' EXIT
fi
echo "servers: installing$wanted"
$root apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $wanted >/dev/null
