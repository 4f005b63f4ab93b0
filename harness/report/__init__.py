"""Tables and figures made from files: run folders and CSVs. Matplotlib lives here and nowhere else."""
