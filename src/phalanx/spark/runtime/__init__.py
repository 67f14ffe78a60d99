"""What all of `phalanx.spark` needs: types, options, errors, and settings of worker processes.

May import `phalanx.table` and below, and no other package of `phalanx.spark`.
Begin with `types`, which maps Arrow types to Spark types, and `options`.
"""
