"""What comes behind rounds and crashes: collection, repair, rebuilding, orphans."""
