#!/usr/bin/env bash
# What the README promises, on a machine that has nothing: a bare Debian (or Ubuntu) of this one's release is made with
# debootstrap, and `make demo` and `make test` run in it, from a clean clone of HEAD. apt and pip are configured there
# as they are here. Root only; `make fresh` runs it. KEEP=1 leaves the folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ "$(id -u)" = 0 ] || { echo "fresh: only root can make a bare Debian" >&2; exit 1; }

# Namespaces of its own: what is mounted there is gone, and what runs there is killed, when their first process ends.
if [ $# = 0 ]; then
  command -v debootstrap >/dev/null ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap; }
  root=$(mktemp -d "${TMPDIR:-/tmp}/distop-fresh.XXXXXX")
  chmod 755 "$root" # apt fetches as a user of its own
  trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"' EXIT
  unshare --mount --pid --fork --kill-child --mount-proc deploy/fresh.sh "$root"
  exit
fi
root=$1

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  sort -u | grep " $release")
mirror=$(awk -v "release=$release" '$3 == release { print $2; exit }' <<<"$sources")
echo "fresh: a bare $release in $root"
debootstrap --variant=minbase --include=python3,python3-venv,make,git,ca-certificates "$release" "$root" "$mirror" \
  >"$root.log" 2>&1 || { tail -n 20 "$root.log"; exit 1; }
rm "$root.log"

printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
apt-config dump --no-empty --format '%F "%v";%n' Acquire | grep -v IndexTargets >"$root/etc/apt/apt.conf.d/90here"
# The certificates are those that are trusted here: a mirror may have its own.
for file in /etc/{hosts,resolv.conf,pip.conf} /etc/ssl/certs/ca-certificates.crt ~/.pip/pip.conf ~/.config/pip/pip.conf \
  /etc/apt/{auth.conf,auth.conf.d,trusted.gpg.d}; do
  [ ! -e "$file" ] || { mkdir -p "$root${file%/*}" && cp -rL "$file" "$root${file%/*}/"; }
done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"

git clone --quiet --no-local . "$root/root/distop"
mapfile -t passed < <(env | grep -iE '^(pip_[a-z_]+|https?_proxy|no_proxy|CI)=')
for target in demo test; do
  env -i "${passed[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" make -C /root/distop $target
done
