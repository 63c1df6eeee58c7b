#!/usr/bin/env bash
# deploy/release.sh REGISTRY: the wheel, the images and the chart of HEAD, with the version of pyproject.toml. Images and
# chart are pushed to REGISTRY, a host and a path; wheel, chart and checksums are left in a folder. `make release` runs it.
#
#   BASE, EXTRAS  of the images: deploy/images.sh
#   OUT           that folder; default: build/release
#   PLAIN_HTTP=1  the registry speaks no TLS; docker takes that from loopback alone
#
# The chart is pushed last, and names the images by their digests: where it is, the release is whole, and is not made
# again. A release that was cut off before that is made again from its beginning.
set -euo pipefail
registry=${1:?REGISTRY is missing: a host and a path, such as registry.example/team}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=${OUT:-build/release}
helm=$(PATH=$root/.venv/helm/bin:$PATH command -v helm) || { echo "release: helm is missing: deploy/helm.sh .venv/helm" >&2; exit 1; }
docker version >/dev/null || { echo "release: no container engine answers" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || echo "note: there are uncommitted changes; HEAD is what is released"
plain=()
[ -z "${PLAIN_HTTP:-}" ] || plain=(--plain-http)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -c tar.umask=0022 archive HEAD | tar --extract --directory "$work"
version=$("$root/.venv/bin/python" -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["project"]["version"])' \
  "$work/pyproject.toml")
if answer=$("$helm" show chart "oci://$registry/charts/distop" --version "$version" "${plain[@]}" 2>&1); then
  echo "release: $version is released there: raise the version in pyproject.toml" >&2
  exit 1
elif ! grep -q ': not found$' <<<"$answer"; then
  echo "release: $registry does not say what it has: $answer" >&2
  exit 1
fi

mkdir -p "$out"
rm -f "$out"/distop-*.{whl,tgz}
"$root/.venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$out" "$work"

"$work/deploy/images.sh"
for image in service spark; do
  name=$registry/distop/$image
  docker tag "distop:$image" "$name:$version"
  docker push --quiet "$name:$version"
  digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$name:$version" | grep -F "$name@")
  sed --in-place "s|^  $image: distop:$image\$|  $image: $name:$version@${digest##*@}|" "$work/deploy/helm/distop/values.yaml"
done

"$helm" package --destination "$out" "$work/deploy/helm/distop"
(cd "$out" && sha256sum distop-*.{whl,tgz} >SHA256SUMS)
"$helm" push "$out/distop-$version.tgz" "oci://$registry/charts" "${plain[@]}"
echo "distop $version is released: helm install distop oci://$registry/charts/distop --version $version"
