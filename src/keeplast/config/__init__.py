"""Files, environment and flags to typed settings; unknown keys refused.

:mod:`~keeplast.config.definitions` is the table, :mod:`~keeplast.config.layers` what each source
says, :mod:`~keeplast.config.settings` which value counts, :mod:`~keeplast.config.settings` what
values must not say together, :mod:`~keeplast.config.sources` where they are looked for right now,
:mod:`~keeplast.config.settings_file` how the file is changed, and
:mod:`~keeplast.config.selection` which partitions a call is about.
"""
