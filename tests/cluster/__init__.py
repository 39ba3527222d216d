"""Tests of coordinator.cluster."""
