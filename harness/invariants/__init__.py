"""What must hold for every method on every checkpoint; ids are those of the project's design."""
