"""Rounds on directories: who decides, who executes, who commits."""
