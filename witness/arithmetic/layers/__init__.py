"""What networks are made of: normalisation, attention, losses, convolutions, pooling, recurrent cells."""
