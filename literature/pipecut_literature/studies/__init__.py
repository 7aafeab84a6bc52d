"""What a study is, and all of them by name."""
