"""What several commands share: opening a task, certificates, explanations, pictures."""
