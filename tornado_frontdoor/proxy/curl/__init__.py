"""libcurl towards engines: streamed, paused, aborted."""
