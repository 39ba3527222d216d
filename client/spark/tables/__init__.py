"""Spark data sources for a coordinator's data: tables, a stream, and a bulk writer.

The formats are ``group_offsets``, ``group_offset_log``, ``group_members`` and
``group_rebalances``; see docs/spark.md.
"""
