#!/usr/bin/env bash
# deploy/kubernetes.sh FOLDER [VERSION]: kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, built with
# Go from the module proxy (ten minutes or more on two cores), into FOLDER/bin, and the resource definitions of
# Prometheus's operator that the chart makes use of into FOLDER/crds. `make test-kubernetes` needs them. Does nothing
# when they are there. PARTS names other programs of Kubernetes: PARTS=kubelet.
set -euo pipefail
mkdir -p "$1/bin" "$1/crds"
folder=$(cd "$1" && pwd)
version=${2:-1.37.2}
operator=github.com/prometheus-operator/prometheus-operator@v0.92.1
read -ra parts <<<"${PARTS:-kube-apiserver kube-controller-manager kube-scheduler kubectl}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

missing=()
for part in "${parts[@]}"; do [ -x "$folder/bin/$part" ] || missing+=("k8s.io/kubernetes/cmd/$part"); done
if [ ${#missing[@]} -gt 0 ]; then
  # Kubernetes replaces the modules of its own tree by folders, which its module lacks; they are published as
  # v0.MINOR.PATCH. So a module of our own has its requirements, with those.
  export GOFLAGS="${GOFLAGS:-} -mod=mod" CGO_ENABLED=0 GOWORK=off
  kubernetes=$(cd "$work" && go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  sed -E "s|^module .*|module built|; s|=> \./staging/src/(.*)|=> \1 v0.${version#1.}|" "$kubernetes/go.mod" >"$work/go.mod"
  cp "$kubernetes/go.sum" "$work/"
  cd "$work"
  go mod edit -require="k8s.io/kubernetes@v$version"
  # Without it a server says that it is v0.0.0.
  named="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/client-go/pkg/version.gitVersion=v$version"
  named+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")"
  for part in "${missing[@]}"; do go build -trimpath -ldflags="-s -w $named" -o "$folder/bin/" "$part"; done
fi

if [ ! -e "$folder/crds/prometheusrules.yaml" ]; then
  cd "$work"
  crds=$(go mod download -json "$operator" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')/example/prometheus-operator-crd
  for kind in servicemonitors podmonitors prometheusrules; do
    install -m 644 "$crds/monitoring.coreos.com_$kind.yaml" "$folder/crds/$kind.yaml"
  done
fi
