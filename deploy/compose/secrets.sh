#!/usr/bin/env bash
# The secrets of deploy/compose.yaml, made with openssl into deploy/compose/secrets: a CA, certificates of etcd and the
# coordinators, passwords, tokens, the configuration of the S3 server. Keeps existing ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p -m 700 secrets
cd secrets
[ ! -e tokens ] || exit 0
umask 022 # containers run as another user; the folder itself is closed

password() { openssl rand -hex 24; }

# certificate NAME SUBJECT-ALTERNATIVE-NAMES
certificate() {
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -subj "/CN=$1" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -out "$1.crt" 2>/dev/null \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$2")
  chmod 644 "$1.key"
  rm "$1.csr"
}

openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3650 -subj "/CN=distop compose" 2>/dev/null
certificate etcd DNS:etcd1,DNS:etcd2,DNS:etcd3,DNS:localhost,IP:127.0.0.1
certificate etcd-client DNS:client
certificate coordinator DNS:coordinator1,DNS:coordinator2,DNS:localhost,IP:127.0.0.1
password >etcd-root-password
password >etcd-password
password >admin-token
password >prometheus-token
cat >s3.json <<JSON
{"identities": [{"name": "distop", "actions": ["Admin", "Read", "Write", "List", "Tagging"],
  "credentials": [{"accessKey": "distop", "secretKey": "$(password | tee s3-secret-key)"}]}]}
JSON
printf '[default]\naws_access_key_id = distop\naws_secret_access_key = %s\n' "$(cat s3-secret-key)" >aws
hash() { printf %s "$(cat "$1")" | sha256sum | cut -d ' ' -f 1; }
printf 'root:%s\nprometheus:%s\n' "$(hash admin-token)" "$(hash prometheus-token)" >tokens.new
mv tokens.new tokens
