"""The commands of the shell, several to a module where they belong together.

May import `phalanx.cli.console` and every layer below the shell; `phalanx.spark` only inside
functions, because Spark is optional. Begin with `history` and `maintenance`; `app` registers every
command and holds the basic ones, such as `create` and `scan`.
"""
