#!/usr/bin/env bash
# Tests the README's promises on a bare machine: a bare Debian (or Ubuntu) of this one's release is made with
# debootstrap, and `make demo` and `make test` run in it, from a clean clone of HEAD. apt and pip are configured there
# as they are here. Root only; `make fresh` runs it. TEST_ARGS are ARGS of `make test`; EVIDENCE is a folder for what
# failed tests leave; KEEP=1 leaves the Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ "$(id -u)" = 0 ] || { echo "fresh: only root can make a bare Debian" >&2; exit 1; }

# Namespaces of its own: what is mounted there is gone, and what runs there is killed, when their first process ends.
if [ $# = 0 ]; then
  root=$(mktemp -d "${TMPDIR:-/tmp}/distop-fresh.XXXXXX")
  chmod 755 "$root" # apt fetches as a user of its own
  trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"' EXIT
  unshare --mount --pid --fork --kill-child --mount-proc deploy/fresh.sh "$root"
  exit
fi
root=$1

deploy/debian.sh "$root" python3 python3-venv make git ca-certificates
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"

git clone --quiet --no-local . "$root/root/distop"
mapfile -t passed < <(env | grep -iE '^(pip_[a-z_]+|https?_proxy|no_proxy|CI)=')
in_there() {
  env -i "${passed[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" make -C /root/distop "$@"
}
in_there demo
code=0
in_there test ARGS="${TEST_ARGS:-}" || code=$?
failures=$root/root/distop/artifacts/failures
[ -z "${EVIDENCE:-}" ] || [ ! -d "$failures" ] || { mkdir -p "$EVIDENCE" && cp -r "$failures" "$EVIDENCE/fresh"; }
exit $code
