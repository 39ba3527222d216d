"""The format ``coordinated``, and where Spark's own Kafka source begins."""
