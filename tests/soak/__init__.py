"""Real processes, all faults at once, for as long as one likes, and a check of all that was said.

``python -m tests.soak --minutes 30 --seed 7``

Theory of operation
===================

One process conducts. It runs the daemon (`tests.soak.node`), and starts it again whenever it has
ended; it runs the clients (`tests.soak.one_client`), each a process with the real client library
and the workload of the simulation; and between the two it stands itself (`tests.soak.wires`):
every client connects to a port of its own here, and what passes is written down as the simulation
writes it down. So the checker of the simulation judges real processes, too: I1-I8, I12, and
whatever the client library told its user.

A request that had no answer when the daemon's process was gone is lost there: it may have been
decided, or not. One that merely lost its connection may be decided as long as that process lives.

Faults (`tests.soak.faults`) come from two decks that are shuffled by the seed, one for the daemon
and one for its clients, which work side by side. A fault comes again only when all others of its
deck have come. In the first part of a run the daemon is killed among other things; in the second
one nothing ends it, and whether its memory, descriptors and threads are flat is measured there.

At the end there are no more faults, and everybody must recover. Everything is read; the daemon
stops, starts and is read again; and the log is verified.
"""
