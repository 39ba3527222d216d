"""Tests of sockets, sessions and dispatch, over a network in memory and virtual time."""
