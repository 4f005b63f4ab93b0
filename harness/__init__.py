"""The harness runs workloads, measures them and writes run folders."""
