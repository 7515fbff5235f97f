"""Plan, run, check, commit; or nothing. Owns the runners and the commit.

Importing this package points the kernel compiler at the user's cache folder, which must happen
before anything imports ``keeplast.columns``.
"""

from keeplast.engine.kernel_cache import install

install()
