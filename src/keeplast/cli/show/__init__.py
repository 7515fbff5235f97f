"""Tables, pictures and words: what a person sees."""
