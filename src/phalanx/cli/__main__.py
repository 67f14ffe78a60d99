"""`python -m phalanx.cli`, for environments without the `phalanx` script."""

from phalanx.cli import main

main()
