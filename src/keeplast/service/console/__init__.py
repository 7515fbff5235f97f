"""The console: what the loop, or a look of its own, knows of every log, as pages for a browser.

The only home of the web framework. What a reader must not break: looking takes no lock and changes
nothing; whatever strangers wrote is escaped; nothing is taken from a URL to a file.
"""
