"""The tables, without Spark."""
