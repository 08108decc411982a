"""How much fits, what would make it fit, on how many devices."""
