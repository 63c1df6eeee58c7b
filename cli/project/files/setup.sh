#!/bin/sh
# Once: the table, with the rules that every row must keep, and a schedule that puts small files together.
set -eu
cd "$(dirname "$0")"
distop table create orders --location "$PWD/data/tables/orders" \
  --schema 'id: long, day: date, amount: long' --partition-by 'month(day)' --checks rules.json
distop schedule add orders tidy compact --when 'small_files > 20'
