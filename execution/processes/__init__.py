"""The processes of a run: how they are started, watched and ended, and how they exchange tensors."""
