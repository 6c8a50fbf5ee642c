"""Matrix products: summed exactly, by whichever engine is fastest here."""
