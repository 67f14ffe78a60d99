"""What all of `phalanx.spark` needs: types, options, errors, and settings of worker processes."""
