"""How storage plugins lay segments out in the remote tier, under one port."""
