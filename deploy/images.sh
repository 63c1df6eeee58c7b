#!/usr/bin/env bash
# Builds the images distop:service and distop:spark, or those that are named; `make images` runs it.
#
#   BASE   the image to build on (default: debian:bookworm-slim). "here": a bare Debian of this machine's release, which
#          is made first where there is none; for that it has to be root. It holds how apt and pip are configured here,
#          with their secrets
#   EXTRAS which extras of pyproject.toml distop:service has, default: s3,kafka
#   TAGS   which of the images, default: "service spark"; deploy/compose.yaml needs etcd, s3 and prometheus, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=${BASE:-debian:bookworm-slim}

if [ "$base" = here ]; then
  base=distop-base:$(. /etc/os-release && echo "$VERSION_CODENAME")
  if [ -z "$(docker images --quiet "$base")" ]; then
    root=$(mktemp -d "${TMPDIR:-/tmp}/distop-base.XXXXXX")
    trap 'rm -rf --one-file-system "$root"' EXIT
    deploy/debian.sh "$root/root" ca-certificates
    tar --create --directory "$root/root" . | docker import - "$base"
  fi
fi
for target in ${TAGS:-service spark}; do
  case $target in service | spark) file=deploy/Dockerfile ;; *) file=deploy/compose/Dockerfile ;; esac
  docker build --quiet --network host --build-arg "BASE=$base" ${EXTRAS:+--build-arg "EXTRAS=$EXTRAS"} \
    --target "$target" --tag "distop:$target" --file "$file" .
done
