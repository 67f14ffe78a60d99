"""What the commands share: options, sources of rows, and output as tables, JSON and messages.

May import every layer below the shell, but no command. Begin with `options` and `results`;
`sources` reads files, and `messages` writes progress and failures to stderr.
"""
