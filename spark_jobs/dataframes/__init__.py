"""The Spark data source ``format("distop")``, and tables as DataFrames."""
