"""What is to be planned: layers, cluster, training, limits and goals, compiled into one frozen instance."""
