"""How storage plugins lay segments out in the remote tier, behind one port."""
