"""Benchmarks: a load generator, two ceilings to compare with, and one run that does it all.

See bench/README.md for what they are for, and what they are not for.
"""
