"""What each command writes as JSON, as models: the schema of replies is made from them."""
