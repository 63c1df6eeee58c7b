#!/usr/bin/env bash
# deploy/helm.sh FOLDER: helm, built with Go from the module proxy (some minutes), and kubernetes-validate, which has
# strict schemas of many versions of Kubernetes, into FOLDER/bin. `make test-helm` needs them. Does nothing when they are
# there.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/python

command -v "$folder/bin/helm" >/dev/null || GOBIN="$folder/bin" go install -trimpath -ldflags='-s -w' helm.sh/helm/v3/cmd/helm@v3.22.0
if ! command -v "$folder/bin/kubernetes-validate" >/dev/null; then
  "$python" -m venv "$folder"
  "$folder/bin/pip" install -qq --disable-pip-version-check kubernetes-validate==1.37.0
fi
