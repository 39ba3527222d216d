"""What a coordinator keeps, as tables, streams and a bulk writer of Spark.

The formats ``group_offsets``, ``group_offset_log``, ``group_members`` and ``group_rebalances``;
see docs/spark.md.
"""
