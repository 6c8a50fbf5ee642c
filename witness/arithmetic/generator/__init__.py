"""Random numbers as a function of key and position; dropout and initialisation."""
