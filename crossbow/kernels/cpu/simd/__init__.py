"""Our own convolutions and matrix products, in vectors of the processor's width."""
