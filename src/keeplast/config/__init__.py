"""Files, environment and flags to typed settings; unknown keys refused.

* :mod:`~keeplast.config.definitions` is the table.
* :mod:`~keeplast.config.layers` is what each source says.
* :mod:`~keeplast.config.precedence` is which value counts, and which may not meet.
* :mod:`~keeplast.config.sources` is where they are looked for right now.
* :mod:`~keeplast.config.settings_file` is how the file is changed.
* :mod:`~keeplast.config.selection` is which partitions a call is about.
"""
