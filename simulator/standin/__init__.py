"""An engine that looks like vLLM over HTTP and has no model."""
