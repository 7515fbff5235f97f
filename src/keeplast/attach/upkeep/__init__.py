"""Work after rounds and crashes: collection, repair, rebuilding, orphans."""
