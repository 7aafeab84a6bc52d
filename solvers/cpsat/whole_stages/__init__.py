"""The accelerated mode: cut positions and tables of whole stages."""
