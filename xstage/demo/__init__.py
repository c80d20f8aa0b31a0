"""What `make demo` runs: bursts, schedules and a validation on this computer, each section with what it should show."""
