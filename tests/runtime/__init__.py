"""Tests of shards, gate, flusher and timers."""
