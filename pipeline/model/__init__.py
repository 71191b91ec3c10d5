"""The acoustic model's arithmetic: the transformer, sampling, and the products they are made of."""
