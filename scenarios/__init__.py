"""What can be run: the schema of scenario and machine files, and the catalogue of those that come with xstage."""
