"""Points the kernel compiler at the user's cache folder before any test imports a kernel."""

import keeplast.columns  # noqa: F401 - imported for what importing it does
