#!/usr/bin/env bash
# deploy/etcd.sh FOLDER package|VERSION: etcd, etcdctl and etcdutl into FOLDER. Installs nothing, starts nothing,
# needs no root.
#
#   package    the etcd of this Debian or Ubuntu, fetched with apt-get and unpacked (older ones have no etcdutl)
#   VERSION    that version, such as 3.5.35, built with Go from the module proxy
set -euo pipefail

mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache}/partial "$work"/{debs,root,module,built}

# apt_download OPTION...: the packages into the folder that this runs in.
apt_download() { apt-get -qq "$@" download etcd-server etcd-client; }

package() {
  local deb own=(-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
  cd "$work/debs"
  # If apt has no package lists, or old ones, use separate lists, which need no root.
  apt_download 2>/dev/null || { apt-get -qq "${own[@]}" update && apt_download "${own[@]}"; }
  for deb in *.deb; do dpkg -x "$deb" "$work/root"; done
  cp "$work"/root/usr/bin/etcd* "$folder/"
}

# Built through a module that requires theirs: `go install` refuses modules with replacements, such as etcd's.
build() {
  local modules=(go.etcd.io/etcd/{server,etcdctl,etcdutl}/v3)
  cd "$work/module"
  export GOFLAGS=-mod=mod CGO_ENABLED=0
  go mod init etcd
  go get "${modules[@]/%/@v$1}"
  go build -trimpath -ldflags='-s -w' -o "$work/built/" "${modules[@]}"
  mv "$work/built/server" "$folder/etcd"
  mv "$work"/built/etcd* "$folder/"
}

if [ "$2" = package ]; then package; else build "$2"; fi
