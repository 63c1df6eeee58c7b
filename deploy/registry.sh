#!/usr/bin/env bash
# deploy/registry.sh FOLDER: Debian's docker-registry, unpacked into FOLDER/bin and not installed. The test of `make release`
# needs it. Does nothing when there is one, here or on the PATH.
set -euo pipefail
mkdir -p "$1/bin"
cd "$1"
if [ -x bin/docker-registry ] || command -v docker-registry >/dev/null; then exit; fi
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
(cd "$new" && apt-get download -qq -o APT::Sandbox::User=root docker-registry && dpkg -x docker-registry_*.deb .)
install -m 755 "$new/usr/bin/docker-registry" bin/docker-registry
