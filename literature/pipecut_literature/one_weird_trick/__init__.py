"""One weird trick (Krizhevsky 2014): convolutions by data, matrices by model."""
