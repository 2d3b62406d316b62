"""Several front doors behind one gate: Redis, and what drives the cluster's protocol here."""
