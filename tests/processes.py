"""Processes of tests: how writers that race or die are forked, and how a JVM starts."""

import multiprocessing

# Lance does not survive a fork after its first use: the server that forks has only imported it.
SERVER = multiprocessing.get_context("forkserver")
# There is one server in a process, with one list. It does not find the modules of tests (Python
# 3.11 forgets the path), and one that it cannot import it leaves out without a word.
SERVER.set_forkserver_preload(["phalanx"])

# A JVM of tests ends before the thorough compiler and a parallel collector have paid: it starts
# with half the work without them.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
