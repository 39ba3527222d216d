"""Joins the pure core and the log to trio: shards, gates, flusher, timers, loading."""
