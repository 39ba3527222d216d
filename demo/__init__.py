"""The main job on real input: Spark drivers share the flights of 2013 through a coordinator.

`demo.story` tells what happens, step by step; `make demo` runs it.
"""
