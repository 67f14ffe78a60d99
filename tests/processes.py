"""Processes of their own for writers that race or die.

Lance does not survive a fork after its first use: the server that forks has only imported it.
"""

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
# There is one server in a process, with one list. It does not find the modules of tests (Python
# 3.11 forgets the path), and one that it cannot import it leaves out without a word.
SERVER.set_forkserver_preload(["phalanx"])
