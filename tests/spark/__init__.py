"""Tests of the Spark integration, without Spark."""
