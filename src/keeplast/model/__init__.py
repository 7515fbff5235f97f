"""The nouns that rooms share: frozen values without behaviour beyond arithmetic. Pure."""
