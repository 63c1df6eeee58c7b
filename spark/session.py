"""Settings with which a Spark session reads and writes distop's tables through Iceberg's runtime.

It needs no library, so that it can be used wherever a session is made.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distop.proto.addresses import is_loopback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URI_VARIABLE, TOKEN_VARIABLE = "DISTOP_CATALOG", "DISTOP_TOKEN"
DEFAULT_URI = "http://127.0.0.1:7072"
"""Where ``distop dev`` serves the catalog."""

_EXTENSIONS = "spark.sql.extensions"
_ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def configure(
    builder: SparkSession.Builder, uri: str = "", *, catalog: str = "distop", token: str = ""
) -> SparkSession.Builder:
    """Have a session read and write distop's tables by name, such as ``distop.default.flights``.

    Call it after other ``spark.sql.extensions`` were set. Iceberg's runtime for the version of Spark must be
    on the class path, by ``spark.jars.packages`` or in Spark's folder ``jars``; without it the session works
    as before, and only names below the catalog are not found.

    Parameters
    ----------
    uri:
        Of a coordinator's catalog, ``http://host:port``; default: ``DISTOP_CATALOG``, or where
        ``distop dev`` serves it.
    catalog:
        What the catalog is called in SQL.
    token:
        Of who calls, where coordinators ask for one; default: ``DISTOP_TOKEN``.

    Returns the builder. Raises ``ValueError`` for a name or an address that cannot be one, and for a token
    that would go to another host in plain text, unless ``DISTOP_INSECURE`` is 1.
    """
    uri = uri or os.environ.get(URI_VARIABLE, "") or DEFAULT_URI
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    if not re.fullmatch(r"\w+", catalog):
        raise ValueError(f"catalog={catalog!r} is no name in SQL: it has letters, digits and underscores")
    if not re.match(r"https?://[^/]", uri):
        raise ValueError(f"uri={uri!r} is no address such as {DEFAULT_URI}")
    host = urlsplit(uri).hostname or ""
    open_to_all = uri.startswith("http:") and os.environ.get("DISTOP_INSECURE", "") in ("", "0")
    if token and open_to_all and not is_loopback(host):
        raise ValueError(f"a token goes to {host} over https:// only; or set DISTOP_INSECURE=1")
    # The builder has no other way to ask for what was set before.
    others = [name.strip() for name in str(builder._options.get(_EXTENSIONS, "")).split(",")]
    settings = {
        _EXTENSIONS: ",".join(name for name in dict.fromkeys((*others, _ICEBERG)) if name),
        f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{catalog}.type": "rest",
        f"spark.sql.catalog.{catalog}.uri": uri,
        # Otherwise a session sees what others commit, distop's operations among them, half a minute later.
        f"spark.sql.catalog.{catalog}.cache-enabled": "false",
    }
    if token:
        settings[f"spark.sql.catalog.{catalog}.token"] = token
    for name, value in settings.items():
        builder.config(name, value)
    return builder
