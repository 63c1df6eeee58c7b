"""The catalog protocol of Apache Iceberg over HTTP: what other engines read and write tables through."""
