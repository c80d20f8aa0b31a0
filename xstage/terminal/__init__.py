"""What a person sees while a command runs and when it ends: progress, text, JSON, errors and exit codes."""
