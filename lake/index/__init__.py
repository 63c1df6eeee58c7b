"""Secondary indexes of a column: their files, the plan of a build, publishing it, and looking values up."""
