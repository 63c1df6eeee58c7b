"""Apache Iceberg's REST catalog protocol over HTTP, through which other engines read and write tables."""
