"""Files, environment and flags to typed settings; unknown keys refused.

:mod:`~keeplast.config.definitions` is the table, :mod:`~keeplast.config.layers` what each source
says, :mod:`~keeplast.config.settings` which value counts, :mod:`~keeplast.config.selection` which
partitions a call is about.
"""
