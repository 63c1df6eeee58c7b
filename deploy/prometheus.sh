#!/usr/bin/env bash
# deploy/prometheus.sh FOLDER: promtool of Debian's package prometheus, unpacked into FOLDER/bin and not installed. `make
# test-alerts` needs it. Does nothing when there is one, here or on the PATH.
set -euo pipefail
mkdir -p "$1/bin"
cd "$1"
if [ -x bin/promtool ] || command -v promtool >/dev/null; then exit; fi
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
(cd "$new" && apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg -x prometheus_*.deb .)
install -m 755 "$new/usr/bin/promtool" bin/promtool
