"""A report for other tools: every frame and table as Parquet with a data dictionary, and a trace for Perfetto."""
