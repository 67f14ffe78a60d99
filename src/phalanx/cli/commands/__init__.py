"""The commands of the shell, several to a module where they belong together."""
