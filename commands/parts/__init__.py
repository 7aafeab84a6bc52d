"""What several commands share: opening a task, showing plans, certificates, explanations, pictures."""
