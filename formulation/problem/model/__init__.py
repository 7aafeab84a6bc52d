"""What a layer graph says of its layers together: weights that they share."""
