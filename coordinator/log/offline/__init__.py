"""Tools for the data folder of a stopped daemon: survey, salvage and repair."""
