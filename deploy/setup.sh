#!/usr/bin/env bash
# Makes .venv with distop and all it needs, from nothing, on Debian or Ubuntu. `make setup` runs it.
# Does nothing, quickly, when nothing changed.
#
#   PYTHON     the Python to build .venv with (default: the first of python3, python3.14 ... 3.11 that is 3.11 or later)
#   DISTOP_APT set to "no" to install no system package, only say which are missing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.distop-stamp
ETCD=3.6.16 # what Go builds where the system has no package of a sound etcd

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

# What is installed, and where: a moved .venv is broken.
stamp() { { pwd && cat pyproject.toml constraints.txt; } | sha256sum; }

# ---- system packages ----

apt_command() {
  command -v apt-get >/dev/null && [ "${DISTOP_APT:-}" != no ] || return 1
  if [ "$(id -u)" = 0 ]; then
    echo "env DEBIAN_FRONTEND=noninteractive apt-get"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get"
  else
    return 1
  fi
}

# apt_install WHY PACKAGE...: the first of the packages that apt offers. Fails when it may not or cannot.
apt_install() {
  local why=$1 apt package
  shift
  apt=$(apt_command) || return 1
  say "$why: asking apt for $(printf '%s' "$*" | sed 's/ / or /g')"
  $apt update -qq </dev/null >/dev/null || true
  for package in "$@"; do
    apt-cache show "$package" >/dev/null 2>&1 || continue
    if $apt install -y -qq --no-install-recommends "$package" </dev/null >/dev/null; then
      say "installed $package"
      return 0
    fi
  done
  return 1
}

# ---- Python ----

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or later was found (${PYTHON:-python3, python3.11 to python3.14})." \
    "Install one, for instance: apt-get install python3.11 python3.11-venv; then: make setup PYTHON=python3.11"
}

make_venv() {
  local python version
  if [ -x $VENV/bin/python ] && new_enough $VENV/bin/python && $VENV/bin/python -m pip --version >/dev/null 2>&1; then
    return
  fi
  python=$(find_python)
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    apt_install "Python $version cannot make virtual environments" "python$version-venv" python3-venv ||
      fail "Python $version cannot make virtual environments, and the missing package could not be installed." \
        "Run as root: apt-get install python$version-venv    (or python3-venv); then make setup again."
  fi
  say "making $VENV with Python $version"
  "$python" -m venv --clear $VENV
}

# ---- Java ----

# The major version of a java program; 0 if it is none.
java_major() { "$1" -version 2>&1 | sed -nE 's/.* version "([0-9]+)[^"]*".*/\1/p;' | head -n 1 | grep . || echo 0; }

# The java that Spark will start.
spark_java() { if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi; }

check_java() {
  local java other
  java=$(spark_java)
  if [ "$(java_major "$java")" -ge 17 ]; then return; fi
  if [ -n "${JAVA_HOME:-}" ]; then
    fail "JAVA_HOME names $JAVA_HOME, which has no Java 17 or later; Spark 4 needs one. Correct it or unset it."
  fi
  for other in /usr/lib/jvm/*/bin/java; do
    if [ -x "$other" ] && [ "$(java_major "$other")" -ge 17 ]; then
      fail "the java on PATH is not 17 or later, but $other is." "Run: export JAVA_HOME=${other%/bin/java}"
    fi
  done
  apt_install "Spark 4 needs Java 17 or later" openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless ||
    fail "Spark 4 needs Java 17 or later, but none was found, and it could not be installed." \
      "Run as root: apt-get install openjdk-17-jre-headless    (or openjdk-21-jre-headless); then make setup again."
  [ "$(java_major java)" -ge 17 ] ||
    fail "Java was installed, but the java on PATH is older: export JAVA_HOME=/usr/lib/jvm/<the new one>"
}

# ---- distop ----

install_all() {
  say "installing distop and its dependencies into $VENV (1.2 GB on disk, much of it Spark)"
  # The one that comes with Python may be years old, and takes twice the time.
  pip_install -c constraints.txt pip
  install_pinned
  pip_install -c constraints.txt -e '.[dev]'
  say "compiling"
  compile $VENV/lib src/distop/*/
}

# Install the pinned packages with two pips at once: one alone uses one processor, for most of the set-up time.
# If they fail, for example because a pin is not for this Python, the pip after them does it, or reports it.
install_pinned() {
  local half
  trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # Ctrl-C does not reach background processes
  for half in 0 1; do
    awk "/==/ && NR % 2 == $half" constraints.txt >$VENV/pinned.$half
    "${PIP[@]}" --no-deps -r $VENV/pinned.$half 2>/dev/null & # no function: its shell would be killed, not pip
  done
  wait
  rm $VENV/pinned.?
}

# -qq: errors only.
PIP=("$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-compile)
pip_install() { "${PIP[@]}" "$@"; }

# pip would compile one file after the other, and 100 MB that nothing here imports. It is done
# at all because many processes start together first.
compile() {
  $VENV/bin/python -m compileall -qq -j 0 -x '/(tests|hive_metastore|moto|mypy|pip)/' "$@" || true
}

# Spark as its Python package has it, less the zipped copy of its Python code. With SPARK_HOME here, Python workers
# take that code from the package, where it is compiled; from the archive each would compile it once more.
link_spark() {
  local whole home=$VENV/spark part
  whole=$($VENV/bin/python -c 'from importlib.util import find_spec as find; print(*find("pyspark").submodule_search_locations)')
  rm -rf $home
  mkdir $home
  for part in bin jars sbin; do ln -s "$whole/$part" $home/; done
}

# ---- etcd ----

# Whether the etcd that distop finds is one to keep data in: metastore/etcd/embedded.py knows.
sound_etcd() {
  $VENV/bin/python -c 'import sys; from distop.metastore.etcd.embedded import find_etcd; sys.exit(not find_etcd().sound)' 2>/dev/null
}

# The wheel's etcd can lose data when it is killed. Unless the environment has one that cannot, one goes into .venv:
# this Debian's or Ubuntu's package, else one that Go builds. $VENV/etcd, empty or not, says that this was tried.
provide_etcd() {
  local from tool log=$VENV/etcd.log
  : >$log
  for from in package $ETCD; do
    tool=$([ "$from" = package ] && echo apt-get || echo go)
    command -v "$tool" >/dev/null || continue
    say "the etcd found here can lose data when it is killed; getting another one with $tool"
    rm -rf $VENV/etcd.new $VENV/etcd
    deploy/etcd.sh $VENV/etcd.new "$from" >>$log 2>&1 || continue
    mv $VENV/etcd.new $VENV/etcd
    (unset DISTOP_ETCD_BINARY && sound_etcd) && return
  done
  rm -rf $VENV/etcd.new $VENV/etcd
  mkdir $VENV/etcd
  say "no other etcd is available (see $log): this one is for trying things out, not for data you keep." \
    "Put etcd 3.4, or 3.5.3 or newer, on PATH; or remove $VENV/etcd and run make setup again."
}

check_etcd() {
  $VENV/bin/python - <<'PY' || fail "no etcd was found: put one on PATH, or set DISTOP_ETCD_BINARY."
import sys

from distop.metastore.etcd.embedded import EtcdNotFound, find_etcd, find_etcdctl

try:
    etcd, _ = find_etcd(), find_etcdctl()
except EtcdNotFound as error:
    sys.exit(f"setup: {error}")
print(f"setup: etcd {etcd.version} ({etcd.origin})")
PY
}

main() {
  local now was
  now=$(stamp)
  was=$(cat $STAMP 2>/dev/null || true)
  if [ "$now" != "$was" ] || ! command -v "$(spark_java)" >/dev/null; then
    rm -rf $STAMP $VENV/etcd
    check_java
    make_venv
    install_all
    link_spark
    printf '%s\n' "$now" >$STAMP
  elif [ -d $VENV/etcd ] || sound_etcd; then
    return
  fi
  sound_etcd || provide_etcd
  check_etcd
  say "done: $VENV/bin/distop"
}

main
