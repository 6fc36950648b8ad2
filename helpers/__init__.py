"""helpers: what the notebooks of Tensor Memory Lab measure with."""
