#!/usr/bin/env bash
# deploy/yarn.sh FOLDER: what a test needs to run YARN, of the version of Hadoop that Spark brings along, and the Python
# that its containers are sent: FOLDER/jars, with Maven, and FOLDER/env.tar.gz, with venv-pack. `make test-yarn` needs them.
# Packs the distop of this checkout each time; the rest is done once.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$PWD/.venv/bin/python

if [ ! -e "$folder/jars.done" ]; then
  mvn -q -B -f deploy/yarn.xml dependency:copy-dependencies -DoutputDirectory="$folder/jars"
  touch "$folder/jars.done"
fi

pip() { "$folder/$1/bin/pip" install -qq --disable-pip-version-check -c constraints.txt "${@:2}"; }

if [ ! -e "$folder/env.done" ]; then
  "$python" -m venv --clear "$folder/env"
  # Spark sends pyspark along by itself.
  pip env '.[rules]' 'pandas<3'
  "$python" -m venv --clear "$folder/pack"
  pip pack venv-pack==0.2.0
  touch "$folder/env.done"
fi
# What an earlier build has left would be packed, too.
rm -rf build/lib
pip env --force-reinstall --no-deps .
"$folder/pack/bin/venv-pack" -q -f --compress-level 1 -p "$folder/env" -o "$folder/env.tar.gz"
