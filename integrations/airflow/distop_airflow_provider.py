"""What Airflow asks an installed provider for; no module of the package, which imports Airflow itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def provider_info() -> dict[str, Any]:
    """The package, its type of connection with the fields of its form, and its link."""
    text = {"type": ["string", "null"]}
    fields = {
        "token_file": "File with the token, in place of the password",
        "ca": "CA certificates of the coordinators (file, or system): enables TLS",
        "cert": "Client certificate (file)",
        "key": "Its key (file)",
        "page": "Address of the web page, for links: http://host:7071",
    }
    return {
        "package-name": "distop-airflow",
        "name": "distop",
        "description": "Operations over partitioned tables, exactly once.",
        "versions": [version("distop-airflow")],
        "connection-types": [
            {
                "connection-type": "distop",
                "hook-class-name": "distop_airflow.hook.DistopHook",
                "hook-name": "distop",
                "conn-fields": {name: {"label": label, "schema": text} for name, label in fields.items()},
            }
        ],
        "extra-links": ["distop_airflow.operator.DistopLink"],
    }
