"""The commands of the shell, several to a module where they belong together.

Modules here may import `phalanx.cli.console`, `phalanx.table` and `phalanx.spark`, the latter only
inside functions, because Spark is optional. Begin with `history` and `maintenance`; `app` registers
every command and holds the basic ones, such as `create` and `scan`.
"""
