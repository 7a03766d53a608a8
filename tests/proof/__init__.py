"""The proof: what the project promises, shown by runs of the software."""
