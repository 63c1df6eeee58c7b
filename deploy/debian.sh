#!/usr/bin/env bash
# debian.sh FOLDER PACKAGE...: a bare Debian (or Ubuntu) of this machine's release in a folder, with these packages; apt
# and pip are configured there as they are here. Root only. `make fresh` runs in one; images have one as their base.
set -euo pipefail
root=$1
shift

[ "$(id -u)" = 0 ] || { echo "debian: only root can make a bare Debian" >&2; exit 1; }
command -v debootstrap >/dev/null ||
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap; }
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  sort -u | grep " $release")
mirror=$(awk -v "release=$release" '$3 == release { print $2; exit }' <<<"$sources")
echo "debian: a bare $release in $root"
debootstrap --variant=minbase --include="$(IFS=,; echo "$*")" "$release" "$root" "$mirror" \
  >"$root.log" 2>&1 || { tail -n 20 "$root.log"; exit 1; }
rm "$root.log"

printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
apt-config dump --no-empty --format '%F "%v";%n' Acquire | grep -v IndexTargets >"$root/etc/apt/apt.conf.d/90here"
# The certificates are those that are trusted here: a mirror may have its own.
for file in /etc/{hosts,resolv.conf,pip.conf} /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates ~/.pip/pip.conf ~/.config/pip/pip.conf \
  /etc/apt/{auth.conf,auth.conf.d,trusted.gpg.d}; do
  [ ! -e "$file" ] || { mkdir -p "$root${file%/*}" && cp -rL "$file" "$root${file%/*}/"; }
done
