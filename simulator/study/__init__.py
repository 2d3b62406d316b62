"""Many runs: replications, sweeps, statistics, fits to logs."""
