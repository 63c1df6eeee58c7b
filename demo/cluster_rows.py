"""The rows of a table, counted inside of the cluster: by day, and those that stand there twice; as JSON."""

from __future__ import annotations

import json
import sys

from distop.catalog import EtcdCatalog
from distop.metastore.etcd.config import EtcdConfig

KEY = ("time_hour", "carrier", "flight")

config = EtcdConfig.from_env()
properties = {
    "etcd.endpoints": ",".join(config.endpoints),
    "etcd.prefix": config.prefix,
    "etcd.user": config.user,
    "etcd.password-file": config.password_file,
    "etcd.ca-cert": config.ca_cert,
    "etcd.cert": config.cert,
    "etcd.key": config.key,
}
table = EtcdCatalog("demo", **{name: text for name, text in properties.items() if text}).load_table(
    f"default.{sys.argv[1]}"
)
rows = table.scan(selected_fields=("year", "month", "day", *KEY)).to_arrow()
doubled = rows.num_rows - rows.group_by(list(KEY)).aggregate([]).num_rows
counted = rows.group_by(["year", "month", "day"]).aggregate([([], "count_all")]).to_pylist()
days = {f"{row['year']:04}-{row['month']:02}-{row['day']:02}": row["count_all"] for row in counted}
print(json.dumps({"days": days, "doubled": doubled}))
