"""Times, forms and memory of whole stages, made once for all programmes."""
